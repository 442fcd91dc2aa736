"""Answers held to a format, on the embedded model; and answers that may not end yet."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Literal

import msgspec
import pytest
import pytest_asyncio
from msgspec import structs

from ganglion.core.errors import GanglionError, InvalidValue
from ganglion.core.events import Delta, Failed, Finished, Opened, Token
from ganglion.core.grammar import Grammar
from ganglion.core.request import (
    ChatPrompt,
    Choice,
    Constraint,
    Gbnf,
    JsonSchema,
    Lark,
    Message,
    Regex,
    Request,
    Stop,
    TextPrompt,
)
from ganglion.core.sampling import Sampling
from ganglion.engines.llama.engine import LlamaEngine
from ganglion.engines.settings import EngineSettings
from ganglion.registry.files.gguf import read_facts
from support.embedded_model import embedded_model, kept_open

pytestmark = [pytest.mark.model, pytest.mark.asyncio(loop_scope="module")]


class Address(msgspec.Struct, forbid_unknown_fields=True):
    street: str
    number: int
    kind: Literal["home", "work"] | None


class Person(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    born: int
    mood: Literal["glad", "sad", "calm"]
    addresses: list[Address]
    scores: list[float]


PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "born": {"type": "integer", "minimum": 1900, "maximum": 2030},
        "mood": {"enum": ["glad", "sad", "calm"]},
        "addresses": {"type": "array", "items": {"$ref": "#/$defs/address"}, "minItems": 1, "maxItems": 1},
        "scores": {"type": "array", "items": {"enum": [0.5, 1, 2.5]}, "maxItems": 2},
    },
    "required": ["name", "born", "mood", "addresses", "scores"],
    "additionalProperties": False,
    "$defs": {
        "address": {
            "type": "object",
            "properties": {
                "street": {"type": "string", "maxLength": 8},
                "number": {"type": "integer", "minimum": 1, "maximum": 999},
                "kind": {"anyOf": [{"enum": ["home", "work"]}, {"type": "null"}]},
            },
            "required": ["street", "number", "kind"],
            "additionalProperties": False,
        }
    },
}
SUBJECTS = (
    "a sailor",
    "a poet",
    "Ada",
    "a thief",
    "a queen",
    "a robot",
    "an uncle",
    "a nurse",
    "a clown",
    "a judge",
)
LIST = 'root ::= item item{1,2}\nitem ::= "- " [a-z ]{3,20} "\\n"'
NESTED = 'root ::= "[" (root ("," root)*)? "]" | digit\ndigit ::= [0-9]{1,3}'


class Answer(msgspec.Struct):
    text: str
    tokens: list[Token]
    end: Finished | Failed
    kinds: list[str]

    @property
    def reason(self) -> str:
        assert isinstance(self.end, Finished), self.end
        return self.end.reason

    @property
    def error(self) -> GanglionError:
        assert isinstance(self.end, Failed)
        return self.end.error


async def answered(engine: LlamaEngine, request: Request) -> Answer:
    grammar = Grammar()
    deltas: list[Delta] = []
    kinds: list[str] = []
    last: object = None
    async for event in engine.generate(request):
        grammar.feed(event)
        last = event
        if isinstance(event, Delta):
            deltas.append(event)
        elif isinstance(event, Opened):
            kinds.append(event.kind)
    grammar.check_ended()
    assert isinstance(last, Finished | Failed)
    tokens = [token for delta in deltas for token in delta.tokens]
    return Answer("".join(delta.text for delta in deltas), tokens, last, kinds)


def asking(text: str, constraint: Constraint | None = None, **changes: object) -> Request:
    request = Request(
        id="r",
        model="m",
        prompt=ChatPrompt((Message("user", text),)),
        sampling=Sampling(temperature=1.0),
        constraint=constraint,
        max_tokens=300,
    )
    return replace(request, **changes)


@asynccontextmanager
async def running(**changes: object) -> AsyncIterator[LlamaEngine]:
    found = embedded_model()
    settings = EngineSettings("m", context=512, kv_tokens=8 * 512, parallel=8)
    subject = LlamaEngine(read_facts(found.path), structs.replace(settings, **changes))
    async with kept_open(subject):
        yield subject


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine() -> AsyncIterator[LlamaEngine]:
    async with running() as subject:
        yield subject


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def exact() -> AsyncIterator[LlamaEngine]:
    """An engine whose answers depend on nothing but their requests."""
    async with running(is_deterministic=True) as subject:
        yield subject


async def test_twenty_warm_answers_are_json_that_the_schema_accepts(engine):
    requests = [
        asking(f"Invent {subject}. {form}", JsonSchema(PERSON))
        for subject in SUBJECTS
        for form in ("Answer in JSON.", "Write a long story instead, no JSON!")
    ]
    for answer in await asyncio.gather(*(answered(engine, request) for request in requests)):
        assert answer.reason == "stop", answer.text
        person = msgspec.json.decode(answer.text, type=Person)
        assert len(person.name) <= 8
        assert 1900 <= person.born <= 2030
        assert len(person.addresses) == 1
        assert all(1 <= address.number <= 999 for address in person.addresses)
        assert set(person.scores) <= {0.5, 1.0, 2.5}
        assert "\n" not in answer.text


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    ("constraint", "pattern"),
    [
        (Regex(r"\d{3}-\d{4} [A-Z][a-z]{2,5}"), r"[0-9]{3}-[0-9]{4} [A-Z][a-z]{2,5}"),
        (Choice(("yes", "yes, please", "no")), "yes|yes, please|no"),
        (Lark('start: "on " DAY\nDAY: "Monday" | "Friday"'), "on (Monday|Friday)"),
        (Gbnf(LIST), r"(- [a-z ]{3,20}\n){2,3}"),
    ],
)
async def test_an_answer_is_what_was_asked_for(engine, constraint, pattern, temperature):
    sampling = Sampling(temperature=temperature)
    answer = await answered(engine, asking("When shall we meet?", constraint, sampling=sampling))
    assert answer.reason == "stop"
    assert re.fullmatch(pattern, answer.text)


async def test_a_recursive_gbnf_grammar_is_followed_as_far_as_there_is_room(engine):
    answer = await answered(engine, asking("Numbers!", Gbnf(NESTED), max_tokens=40))
    if answer.reason == "stop":
        json.loads(answer.text)
    assert re.fullmatch(r"[\[\],0-9]+", answer.text)


async def test_a_plain_prompt_is_held_to_its_format_too(engine):
    request = asking("", Regex("[0-9]{4}"), prompt=TextPrompt("The moon landing was in the year "))
    assert re.fullmatch("[0-9]{4}", (await answered(engine, request)).text)


async def test_logprobs_are_the_models_own_whatever_the_format_allows(engine):
    greedy = Sampling(temperature=0.0)
    free = await answered(engine, asking("Say hello.", sampling=greedy, max_tokens=1, top_logprobs=1))
    held = await answered(engine, asking("Say hello.", Choice(("zebra",)), sampling=greedy, top_logprobs=1))
    assert held.text == "zebra"
    assert held.tokens[0].top == free.tokens[0].top
    assert held.tokens[0].logprob is not None and free.tokens[0].logprob is not None
    assert held.tokens[0].logprob < free.tokens[0].logprob


async def test_a_format_binds_its_own_sequence_and_no_neighbour(exact):
    free = asking("Describe a harbour.", sampling=Sampling(temperature=0.0), max_tokens=30)
    held = asking("Describe a harbour.", Regex("[A-Z]{20}"))
    alone = await answered(exact, free)
    among, *others = await asyncio.gather(*(answered(exact, each) for each in (free, held, held)))
    assert among.text == alone.text
    assert all(re.fullmatch("[A-Z]{20}", other.text) for other in others)


async def test_the_same_seed_gives_the_same_answer(exact):
    request = asking("Invent a cat.", Regex("[a-z ]{30}"), sampling=Sampling(temperature=1.0, seed=7))
    assert (await answered(exact, request)).text == (await answered(exact, request)).text


@pytest.mark.parametrize(
    ("constraint", "reason"),
    [
        (JsonSchema({"type": "thing"}), "Invalid type: thing"),
        (JsonSchema({"not": {}}), 'Unimplemented keys: ["not"]'),
        (JsonSchema({"$ref": "#/$defs/nope"}), "nope"),
        (JsonSchema({"$ref": "#"}), "cannot be"),
        (Regex("(a"), "unclosed group"),
        (Regex(r"a\b"), "lookaround"),
        (Lark("start: nope"), "nope"),
        (Lark(""), "Empty grammar"),
        (Gbnf("root ::= nope"), "nope"),
    ],
)
async def test_what_cannot_be_compiled_is_told_with_its_reason(engine, constraint, reason):
    answer = await answered(engine, asking("Hi", constraint))
    assert type(answer.error) is InvalidValue
    assert answer.error.status == 400
    assert answer.error.param == "response_format"
    assert reason in answer.error.message
    assert "x-guidance" not in answer.error.message


async def test_a_grammar_that_is_satisfied_ends_an_answer_that_may_not_end(engine):
    held = asking("Hi", Choice(("yes", "no")), stop=Stop(ignore_eos=True))
    assert (await answered(engine, held)).reason == "stop"
    longer = await answered(engine, asking("Hi", Regex("a{1,3}"), min_tokens=50))
    assert longer.reason == "stop"
    assert longer.text == "aaa"


async def test_an_answer_has_at_least_the_tokens_that_were_asked_for(exact):
    greedy = Sampling(temperature=0.0)
    short = await answered(exact, asking("Say hi.", sampling=greedy))
    assert short.reason == "stop"
    count = len(short.tokens)
    longer = await answered(exact, asking("Say hi.", sampling=greedy, min_tokens=count + 8))
    assert longer.text.startswith(short.text)
    assert len(longer.tokens) >= count + 8
    assert isinstance(longer.end, Finished)


async def test_until_then_a_stop_string_ends_it_and_a_stop_token_does_not(exact):
    greedy = Sampling(temperature=0.0)
    short = await answered(exact, asking("Say hi.", sampling=greedy, max_tokens=8))
    by_string = asking("Say hi.", sampling=greedy, min_tokens=8, stop=Stop(strings=(short.text[5:8],)))
    assert (await answered(exact, by_string)).text == short.text[:5]
    first = short.tokens[0].id
    by_token = asking("Say hi.", sampling=greedy, min_tokens=6, max_tokens=6, stop=Stop(token_ids=(first,)))
    tokens = (await answered(exact, by_token)).tokens
    assert len(tokens) == 6
    assert first not in {token.id for token in tokens}


async def test_reasoning_that_the_prompt_opened_is_not_held_to_the_format():
    thinking = "{{ messages[0].content }}<think>\n"
    async with running(chat_template=thinking) as engine:
        answer = await answered(engine, asking("What is a harbour? ", Regex("[0-9]+"), max_tokens=12))
    assert answer.reason == "length"
    assert answer.kinds == ["reasoning"]
    assert re.search("[^0-9]", answer.text)


async def test_who_leaves_while_a_grammar_is_compiled_is_gone(engine):
    slow = JsonSchema({"properties": {f"property {number}": {} for number in range(9000)}})
    streams = [engine.generate(asking("Hi", slow)) for _ in range(3)]
    tasks = [asyncio.create_task(anext(stream)) for stream in streams]
    await asyncio.sleep(0.2)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert (await answered(engine, asking("Hi", Choice(("a", "b"))))).reason == "stop"
    assert engine.models()[0].in_flight == 0
