"""What another key made is answered exactly as what does not exist, on every route, to the byte."""

import random
import uuid

import httpx
from responding import MEMORY, Asking, ask
from websockets.asyncio.client import connect

PROBES = 1000
KEYS = {"ann": "key-of-ann", "bob": "key-of-bob"}


def probes(ids: dict[str, str]) -> list[tuple[str, str, object]]:
    """Every request that names something of somebody's."""
    response, talk, item = ids["response"], ids["conversation"], ids["item"]
    reference = {"type": "item_reference", "id": ids["said"]}
    return [
        ("GET", f"/v1/responses/{response}", None),
        ("GET", f"/v1/responses/{response}?stream=true&starting_after=2", None),
        ("DELETE", f"/v1/responses/{response}", None),
        ("POST", f"/v1/responses/{response}/cancel", None),
        ("GET", f"/v1/responses/{response}/input_items", None),
        ("GET", f"/v1/responses/{response}/input_items?after={item}", None),
        ("POST", "/v1/responses", ask("hi", previous_response_id=response)),
        ("POST", "/v1/responses", ask("hi", previous_response_id=response, stream=True)),
        ("POST", "/v1/responses", ask("hi", previous_response_id=response, background=True)),
        ("POST", "/v1/responses", ask("hi", conversation=talk)),
        ("POST", "/v1/responses", ask([reference])),
        ("POST", "/v1/responses/input_tokens", ask("hi", previous_response_id=response)),
        ("POST", "/v1/responses/compact", ask("hi", previous_response_id=response)),
        ("GET", f"/v1/conversations/{talk}", None),
        ("POST", f"/v1/conversations/{talk}", {"metadata": {"mine": "now"}}),
        ("DELETE", f"/v1/conversations/{talk}", None),
        ("GET", f"/v1/conversations/{talk}/items", None),
        ("POST", f"/v1/conversations/{talk}/items", {"items": [{"role": "user", "content": "me"}]}),
        ("GET", f"/v1/conversations/{talk}/items/{item}", None),
        ("DELETE", f"/v1/conversations/{talk}/items/{item}", None),
    ]


async def belongings(asking: Asking) -> dict[str, str]:
    talk = await asking.ok("POST", "/v1/conversations", {})
    response = await asking.create("secret", conversation=talk["id"], background=True)
    done = await asking.until(response["id"], "completed")
    items = await asking.ok("GET", f"/v1/conversations/{talk['id']}/items", order="asc")
    return {
        "response": done["id"],
        "conversation": talk["id"],
        "item": items["data"][0]["id"],
        "said": done["output"][0]["id"],
    }


def unknown(ids: dict[str, str]) -> dict[str, str]:
    """Ids of the same shape that name nothing."""
    made = {name: f"{found.split('_')[0]}_{uuid.uuid4().hex}" for name, found in ids.items()}
    return {name: made[name] + found[len(made[name]) :] for name, found in ids.items()}


def told(answer: httpx.Response, ids: dict[str, str]) -> tuple[int, bytes, list[tuple[str, str]]]:
    """An answer with the ids that were asked for taken out."""
    body = answer.content
    for name, found in ids.items():
        body = body.replace(found.encode(), name.encode())
    passing = ("x-request-id", "request-id", "date")
    headers = [(name, value) for name, value in answer.headers.items() if name not in passing]
    return answer.status_code, body, headers


async def test_a_thousand_probes_by_each_of_two_tenants_find_nothing_and_learn_nothing(serving) -> None:
    async with serving(storage=MEMORY, api_keys=tuple(KEYS.values())) as served:
        asking = {name: Asking(served.http, key) for name, key in KEYS.items()}
        owned = {name: await belongings(each) for name, each in asking.items()}
        chance = random.Random(8)
        for prober, owner in (("ann", "bob"), ("bob", "ann")):
            theirs, nobodys = owned[owner], unknown(owned[owner])
            pairs = list(zip(probes(theirs), probes(nobodys), strict=True))
            for number in range(PROBES):
                one, other = pairs[number] if number < len(pairs) else chance.choice(pairs)
                found = told(await asking[prober].call(*one), theirs)
                assert found == told(await asking[prober].call(*other), nobodys)
                assert found[0] == 404
        for name, each in asking.items():
            assert await each.get(owned[name]["response"])
            items = await each.ok("GET", f"/v1/conversations/{owned[name]['conversation']}/items")
            assert len(items["data"]) == 2, "nothing was added or taken"


async def test_what_one_key_sealed_does_not_open_for_another(serving) -> None:
    async with serving(storage=MEMORY, api_keys=tuple(KEYS.values())) as served:
        ann, bob = (Asking(served.http, key) for key in KEYS.values())
        compacted = await ann.ok("POST", "/v1/responses/compact", ask("remember fig"))
        asked = ask([*compacted["output"], {"role": "user", "content": "which word?"}])
        assert (await bob.error("POST", "/v1/responses", asked))[:2] == (400, "invalid_value")
        assert (await ann.call("POST", "/v1/responses", asked)).status_code == 200


async def test_a_socket_belongs_to_its_key(serving) -> None:
    async with serving(storage=MEMORY, api_keys=tuple(KEYS.values())) as served:
        owned = await belongings(Asking(served.http, KEYS["ann"]))
        headers = {"authorization": f"Bearer {KEYS['bob']}"}
        address = f"ws://127.0.0.1:{served.port}/v1/responses"
        async with connect(address, additional_headers=headers) as socket:
            answers = []
            for ids in (owned, unknown(owned)):
                body = ask("hi", previous_response_id=ids["response"], type="response.create")
                await socket.send(httpx.Request("POST", "http://x", json=body).content.decode())
                answer = str(await socket.recv())
                answers.append(answer.replace(ids["response"], "response"))
        assert answers[0] == answers[1]
        assert '"previous_response_not_found"' in answers[0]
