"""vLLM over the embedded model as a checkpoint: what is asked is done, and it is what llama.cpp computes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest
import pytest_asyncio

from ganglion.core.errors import InvalidValue, UnsupportedParameter
from ganglion.core.events import Delta, Event, Failed, Finished, Scored
from ganglion.core.fold import fold
from ganglion.core.grammar import Grammar
from ganglion.core.request import (
    ChatPrompt,
    Choice,
    JsonSchema,
    Lark,
    Message,
    Request,
    Score,
    Stop,
    TextPrompt,
    TokenPrompt,
    TokenRequest,
    Tool,
    ToolUse,
)
from ganglion.core.sampling import ResolvedSampling, Samplers, Sampling
from ganglion.engines.llama.engine import LlamaEngine
from ganglion.engines.settings import EngineSettings
from ganglion.engines.vllm.engine import VllmEngine
from ganglion.registry.files.gguf import read_facts
from support.embedded_model import embedded_model, kept_open
from support.vllm_node import vllm_engine
from support.waiting import until

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.model,
    pytest.mark.vllm,
    pytest.mark.timeout(600),
]
GREEDY = Sampling(temperature=0.0)
STORY = "Once upon a time there was a little girl who lived in a small house near the"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine() -> AsyncIterator[VllmEngine]:
    async with vllm_engine() as opened:
        yield opened


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def llama() -> AsyncIterator[LlamaEngine]:
    opened = LlamaEngine(
        read_facts(embedded_model().path), EngineSettings(model_id="smollm2", context=2048, parallel=4)
    )
    async with kept_open(opened):
        yield opened


def asked(text: str = STORY, **changes: object) -> Request:
    values: dict[str, object] = {"prompt": TextPrompt(text), "sampling": GREEDY, "max_tokens": 16}
    return Request("r", "smollm2", **(values | changes))  # type: ignore[arg-type]


async def answer(engine: VllmEngine | LlamaEngine, request: Request) -> list[Event]:
    grammar, events = Grammar(), []
    async for event in engine.generate(request):
        grammar.feed(event)
        events.append(event)
    grammar.check_ended()
    return events


def text_of(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Delta))


def finish_of(events: list[Event]) -> Finished:
    assert isinstance(events[-1], Finished), events[-1]
    return events[-1]


def error_of(events: list[Event]) -> Exception:
    assert isinstance(events[-1], Failed), events[-1]
    return events[-1].error


def scored(events: list[Event]) -> list[float | None]:
    return [token.logprob for event in events if isinstance(event, Scored) for token in event.tokens]


# The same weights in two engines. llama.cpp keeps Q4_1 and rounds activations to 8 bits, vLLM computes in
# bfloat16, which has 8 bits of mantissa: single logprobs differ by up to some tenths, on average by far less.
MOST_APART = 0.6
MEAN_APART = 0.15


async def test_scores_are_those_of_llama_cpp(engine: VllmEngine, llama: LlamaEngine) -> None:
    request = asked(
        "The capital of France is Paris, and the capital of Italy is Rome. " + STORY, max_tokens=0
    )
    request = Request("r", "smollm2", request.prompt, max_tokens=0, score=Score(((0, None),), top=3))
    theirs = scored(await answer(engine, request))
    ours = scored(await answer(llama, request))
    assert len(theirs) == len(ours) > 30
    assert (theirs[0], ours[0]) == (None, None)
    apart = [abs(a - b) for a, b in zip(theirs, ours, strict=True) if a is not None and b is not None]
    assert max(apart) < MOST_APART
    assert sum(apart) / len(apart) < MEAN_APART


async def test_greedy_text_is_that_of_llama_cpp_where_the_model_is_sure(
    engine: VllmEngine, llama: LlamaEngine
) -> None:
    prompt = ChatPrompt((Message("user", "What is the capital of France? Answer in one sentence."),))
    request = asked(prompt=prompt, max_tokens=24)
    assert text_of(await answer(engine, request)) == text_of(await answer(llama, request))


async def test_both_read_a_chat_as_the_same_tokens(engine: VllmEngine, llama: LlamaEngine) -> None:
    texts = ["Hello, wörld! 123 456\n\n\tx", "<|im_start|>user", "日本語 🎉 e\u0301", " a  b   c"]
    for text in texts:
        for prompt in (TextPrompt(text), ChatPrompt((Message("user", text),))):
            theirs, ours = [await each.read(asked(prompt=prompt)) for each in (engine, llama)]
            assert theirs == ours
            assert b"".join(await engine.pieces("smollm2", theirs.tokens)) == b"".join(
                await llama.pieces("smollm2", theirs.tokens)
            )


async def test_sampling_is_honoured(engine: VllmEngine) -> None:
    seeded = asked(sampling=Sampling(temperature=1.0, seed=7))
    first, again = [text_of(await answer(engine, seeded)) for _ in range(2)]
    assert first == again
    drawn = {
        text_of(await answer(engine, asked(sampling=Sampling(temperature=1.5, seed=n)))) for n in range(4)
    }
    assert len(drawn) > 1
    greedy = text_of(await answer(engine, asked()))
    for likeliest in (Sampling(temperature=1.0, top_k=1), Sampling(temperature=1.0, top_p=0.0)):
        assert text_of(await answer(engine, asked(sampling=likeliest))) == greedy


async def test_bias_bans_and_allows(engine: VllmEngine) -> None:
    async def told(sampling: Sampling) -> tuple[int, ...]:
        request = asked(wants_token_ids=True, max_tokens=4, sampling=sampling)
        ids = finish_of(await answer(engine, request)).token_ids
        assert ids is not None
        return ids

    ids = await told(GREEDY)
    banned = Sampling(temperature=0.0, logit_bias=tuple((token, -100.0) for token in ids))
    assert not set(await told(banned)) & set(ids)
    only = Sampling(temperature=0.0, samplers=Samplers(allowed_token_ids=(ids[0],)))
    assert await told(only) == (ids[0],) * 4


async def test_an_end_is_withheld_and_ignored(engine: VllmEngine) -> None:
    prompt = ChatPrompt((Message("user", "What is the capital of France?"),))
    short = finish_of(await answer(engine, asked(prompt=prompt, max_tokens=40)))
    assert short.reason == "stop"
    assert short.usage.completion_tokens < 30
    least = finish_of(await answer(engine, asked(prompt=prompt, max_tokens=40, min_tokens=30)))
    assert least.usage.completion_tokens >= 30
    ignored = await answer(engine, asked(prompt=prompt, max_tokens=40, stop=Stop(ignore_eos=True)))
    assert (finish_of(ignored).reason, finish_of(ignored).usage.completion_tokens) == ("length", 40)
    assert "<|im_end|>" not in text_of(ignored)


async def test_what_vllm_cannot_do_is_refused_by_name_and_nothing_runs(engine: VllmEngine) -> None:
    events = await answer(engine, asked(sampling=Sampling(samplers=Samplers(xtc_probability=0.5))))
    error = error_of(events)
    assert isinstance(error, UnsupportedParameter)
    assert error.param == "xtc_probability"
    assert len(events) == 1


@pytest.mark.parametrize(
    ("constraint", "accepted"),
    [
        (Choice(("London", "Berlin")), {"London", "Berlin"}),
        (Lark('start: "a" ("b" | "c") "d"'), {"abd", "acd"}),
    ],
)
async def test_a_format_holds(engine: VllmEngine, constraint: Choice | Lark, accepted: set[str]) -> None:
    events = await answer(engine, asked(constraint=constraint, sampling=Sampling(temperature=1.0)))
    assert text_of(events) in accepted
    assert finish_of(events).reason == "stop"


async def test_a_schema_holds_whatever_is_sampled(engine: VllmEngine) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 99}}, "required": ["n"]}
    prompt = ChatPrompt((Message("user", "Give me a number as JSON."),))
    request = asked(
        prompt=prompt,
        constraint=JsonSchema({**schema, "additionalProperties": False}),
        sampling=Sampling(temperature=1.5),
        max_tokens=60,
    )
    for _ in range(3):
        text = text_of(await answer(engine, request))
        assert text.startswith("{")
        assert text.endswith("}")
        assert '"n"' in text


async def test_a_call_that_is_asked_for_is_made(engine: VllmEngine) -> None:
    tool = Tool(
        "weather",
        "the weather",
        {"type": "object", "properties": {"city": {"enum": ["Rome"]}}, "required": ["city"]},
    )
    use = ToolUse((tool,), choice="required", is_parallel=False)
    prompt = ChatPrompt((Message("user", "Weather in Rome?"),), tool_use=use)
    events = await answer(engine, asked(prompt=prompt, max_tokens=100))
    assert finish_of(events).reason == "tool_calls"
    [call] = [block for block in fold(events).blocks if block.kind == "tool_call"]
    assert call.name == "weather"
    assert "Rome" in call.text


async def test_a_grammar_that_cannot_be_compiled_is_its_authors_fault(engine: VllmEngine) -> None:
    for bad in ("this is no grammar", 'start: "a', "start: " + "(" * 3000 + '"a"' + ")" * 3000):
        assert isinstance(error_of(await answer(engine, asked(constraint=Lark(bad)))), InvalidValue)
    assert finish_of(await answer(engine, asked()))


async def test_a_neighbours_prefix_is_not_found_and_ones_own_is(engine: VllmEngine) -> None:
    prompt = "A prefix that two tenants share. " + 4 * STORY
    for tenant, cached in (("one", False), ("one", True), ("two", False), ("two", True)):
        usage = finish_of(await answer(engine, asked(prompt, tenant=tenant))).usage
        assert (usage.cached_tokens > 32) == cached


async def test_logprobs_are_the_models_own_whatever_shapes_the_choice(engine: VllmEngine) -> None:
    plain, shaped = [
        [
            token
            for event in await answer(engine, request)
            if isinstance(event, Delta)
            for token in event.tokens
        ]
        for request in (
            asked(top_logprobs=3, max_tokens=1),
            asked(top_logprobs=3, max_tokens=1, sampling=Sampling(temperature=0.5, seed=1, top_k=2)),
        )
    ]
    assert [each.id for each in plain[0].top] == [each.id for each in shaped[0].top]
    for one, other in zip(plain[0].top, shaped[0].top, strict=True):
        assert one.logprob == pytest.approx(other.logprob, abs=0.05)
    assert plain[0].logprob == plain[0].top[0].logprob


async def test_ranks_of_scored_tokens_agree_with_their_alternatives(engine: VllmEngine) -> None:
    events = await answer(engine, asked(max_tokens=0, score=Score(((1, None),), top=4)))
    tokens = [token for event in events if isinstance(event, Scored) for token in event.tokens]
    assert tokens
    for token in tokens:
        logprobs = [each.logprob for each in token.top]
        assert logprobs == sorted(logprobs, reverse=True)
        assert token.rank is not None
        assert (token.rank <= 4) == (token.id in [each.id for each in token.top])


async def test_two_hundred_clients_that_leave_leave_nothing_behind(engine: VllmEngine) -> None:
    async def leave(number: int) -> None:
        request = asked(f"Story number {number}", max_tokens=1500, stop=Stop(ignore_eos=True))
        async with asyncio.timeout(0.02 * (number % 40)), aclosing(engine.generate(request)) as events:
            async for _ in events:
                pass

    for start in range(0, 200, 50):
        left = await asyncio.gather(*(leave(start + each) for each in range(50)), return_exceptions=True)
        assert all(isinstance(each, TimeoutError) for each in left)
    await until(lambda: engine.tokens.queue.inside == 0, 30.0)
    await until(lambda: engine.tokens.load.running == engine.tokens.load.waiting == 0, 30.0)
    state = engine.models()[0]
    assert (state.in_flight, state.queued, state.slots_used, state.kv_used) == (0, 0, 0, 0)
    assert finish_of(await answer(engine, asked()))


async def test_an_urgent_request_overtakes_those_that_wait(engine: VllmEngine) -> None:
    done: list[str] = []

    async def run(name: str, priority: int, tokens: int) -> None:
        ids = tuple(1000 + (len(name) * 37 + each) % 900 for each in range(40))
        request = asked(
            prompt=TokenPrompt(ids), priority=priority, max_tokens=tokens, stop=Stop(ignore_eos=True)
        )
        await answer(engine, request)
        done.append(name)

    most = engine.plan.parallel
    crowd = [asyncio.create_task(run("long", 0, 60 + 5 * each)) for each in range(most)]
    await until(lambda: engine.tokens.load.running == most, 240.0)
    late = [asyncio.create_task(run("later", 10, 4)) for _ in range(2)]
    await until(lambda: engine.tokens.load.waiting == 2, 240.0)
    urgent = asyncio.create_task(run("urgent", -10, 4))
    await asyncio.gather(*crowd, *late, urgent)
    assert done.index("urgent") < done.index("later")


async def test_a_session_has_no_state_to_save_and_loads_none(engine: VllmEngine) -> None:
    tokens = (await engine.read(asked())).tokens
    request = TokenRequest(
        "r", tokens, 4, sampling=ResolvedSampling(temperature=0.0), salt="s", in_tokens=True
    )
    assert [event async for event in engine.continue_tokens("smollm2", request)]
    assert await engine.save_kv("smollm2", "s", tokens) == b""
    assert await engine.load_kv("smollm2", "s", tokens, b"something") == 0
