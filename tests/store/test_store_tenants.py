"""Nothing of one tenant is seen, changed or hinted at through another's name."""

import random
from collections.abc import Awaitable, Callable

from kept import conversation, events, items, response

from ganglion.store.database import Store

TENANTS = ("ann", "bob")
PROBES = 1_000

VERBS: list[Callable[[Store, str, str], Awaitable[object]]] = [
    lambda store, tenant, name: store.response(tenant, f"resp_{name}"),
    lambda store, tenant, name: store.delete(tenant, f"resp_{name}"),
    lambda store, tenant, name: store.chain(tenant, f"resp_{name}"),
    lambda store, tenant, name: store.events(tenant, f"resp_{name}"),
    lambda store, tenant, name: store.append_events(tenant, f"resp_{name}", events(7)),
    lambda store, tenant, name: store.replace(response(f"resp_{name}", tenant=tenant)),
    lambda store, tenant, name: store.conversation(tenant, f"conv_{name}"),
    lambda store, tenant, name: store.set_metadata(tenant, f"conv_{name}", b"stolen"),
    lambda store, tenant, name: store.delete_conversation(tenant, f"conv_{name}"),
    lambda store, tenant, name: store.items(tenant, f"conv_{name}"),
    lambda store, tenant, name: store.append_items(tenant, f"conv_{name}", items("planted")),
    lambda store, tenant, name: store.item(tenant, f"conv_{name}", f"item_{name}"),
    lambda store, tenant, name: store.delete_item(tenant, f"conv_{name}", f"item_{name}"),
]


async def everything(store: Store, tenant: str) -> list[object]:
    found: list[object] = []
    for number in range(20):
        name = f"{tenant}{number}"
        found += [
            await store.response(tenant, f"resp_{name}"),
            await store.events(tenant, f"resp_{name}"),
            await store.conversation(tenant, f"conv_{name}"),
            await store.items(tenant, f"conv_{name}"),
        ]
    return found


async def test_a_thousand_probes_by_each_tenant_find_and_change_nothing(store: Store) -> None:
    for tenant in TENANTS:
        for number in range(20):
            name = f"{tenant}{number}"
            running = response(f"resp_{name}", tenant=tenant, status="in_progress")
            await store.put(running, events=events(0, 1))
            await store.create_conversation(
                conversation(f"conv_{name}", tenant=tenant), items(f"item_{name}")
            )
    before = {tenant: await everything(store, tenant) for tenant in TENANTS}
    chance = random.Random(8)
    for owner, prober in (TENANTS, TENANTS[::-1]):
        for _ in range(PROBES):
            verb = chance.choice(VERBS)
            probed = await verb(store, prober, f"{owner}{chance.randrange(20)}")
            assert probed == await verb(store, prober, "unknown")
            assert not probed
    assert before == {tenant: await everything(store, tenant) for tenant in TENANTS}


async def test_two_tenants_may_use_the_same_ids(store: Store) -> None:
    for tenant in TENANTS:
        await store.put(response("same", tenant=tenant, body=tenant.encode()), events=events(0))
        await store.create_conversation(conversation("same", tenant=tenant), items("same"))
    await store.delete("ann", "same")
    await store.delete_conversation("ann", "same")
    assert await store.response("bob", "same") == response("same", tenant="bob", body=b"bob")
    assert await store.events("bob", "same") == tuple(events(0))
    assert len(await store.items("bob", "same")) == 1


async def test_a_chain_does_not_lead_into_another_tenants_history(store: Store) -> None:
    await store.put(response("root", tenant="bob", body=b"secret"))
    await store.put(response("next", tenant="ann", previous_id="root"))
    assert [link.id for link in await store.chain("ann", "next")] == ["next"]


async def test_items_do_not_land_in_another_tenants_conversation(store: Store) -> None:
    await store.create_conversation(conversation(tenant="bob"))
    await store.put(response(tenant="ann", conversation_id="conv_1"), items=items("planted"))
    assert await store.items("bob", "conv_1") == ()
