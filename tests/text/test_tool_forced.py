"""A forced answer is a call that its own reader reads, and nothing else is allowed."""

import json
import random

import pytest
from call_samples import FAMILY, NOW, SAMPLES, TOOLS, WEATHER
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from test_tool_calls import blocks_of, calls_of

from ganglion.core.request import MAX_CALLS, Choice, Lark, Regex, Tool, ToolUse
from ganglion.text.tools.tool_grammar import tool_call_grammar

EOS = 256
CONTROL = 257
"""The first of the ids that stand for a family's markers where they are control tokens."""
NAMES = sorted(FAMILY)

PATCH = Tool("patch", is_custom=True, text_format=Regex("[a-z]+/[a-z]+"))
LINES = Tool("lines", is_custom=True, text_format=Lark('start: "begin" LINE+\nLINE: /\\n[a-z]+/'))
STRICT = Tool(
    "set",
    parameters={
        "type": "object",
        "properties": {
            "unit": {"enum": ["C", "F"], "type": "string"},
            "at": {"$ref": "#/$defs/at"},
            "tags": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["unit", "at"],
        "$defs": {
            "at": {"type": "object", "properties": {"hour": {"type": "integer"}}, "required": ["hour"]}
        },
        "additionalProperties": False,
    },
    is_strict=True,
)


class Bytes:
    """A vocabulary of bytes, with control tokens behind them."""

    def __init__(self, markers: tuple[str, ...]) -> None:
        self.eos_token_id = EOS
        self.bos_token_id = None
        self.tokens = [bytes([one]) for one in range(256)] + [b"<|eos|>", *[one.encode() for one in markers]]
        self.special_token_ids = list(range(EOS, len(self.tokens)))

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text if isinstance(text, bytes) else text.encode())


def control_ids(name: str) -> dict[str, int]:
    markers = FAMILY[name].markers - {"<function="}
    return {marker: CONTROL + at for at, marker in enumerate(sorted(markers))}


def is_written(grammar: str, text: str, ids: dict[str, int] | None = None, *, is_whole: bool = True) -> bool:
    """Whether the grammar lets the text be written; control tokens where the text spells them."""
    assert LLMatcher.validate_grammar(grammar, None) == ""
    matcher = LLMatcher(LLTokenizer(TokenizerWrapper(Bytes(tuple(ids or ())))), grammar, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    tokens: list[int] = []
    while text:
        marker = next((one for one in ids or () if text.startswith(one)), None)
        tokens += [(ids or {})[marker]] if marker else list(text[0].encode())
        text = text[len(marker) if marker else 1 :]
    return matcher.try_consume_tokens(tokens) == len(tokens) and (matcher.is_accepting() or not is_whole)


def is_over(grammar: str, text: str, ids: dict[str, int]) -> bool:
    """Whether nothing can follow the text."""
    matcher = LLMatcher(LLTokenizer(TokenizerWrapper(Bytes(tuple(ids)))), grammar, log_level=0)
    while text:
        marker = next((one for one in ids if text.startswith(one)), None)
        for token in [ids[marker]] if marker else list(text[0].encode()):
            assert matcher.consume_token(token), matcher.get_error()
        text = text[len(marker) if marker else 1 :]
    return matcher.is_stopped()


def grammar_of(
    name: str, *tools: Tool, choice: str = "required", is_parallel: bool = True, **rest: object
) -> str:
    use = ToolUse(tools, choice, is_parallel=is_parallel)  # type: ignore[arg-type]
    grammar = tool_call_grammar(use, FAMILY[name], **rest)  # type: ignore[arg-type]
    assert grammar is not None
    return grammar


BAR = "\uff5c"
CANONICAL = {
    **SAMPLES,
    "generic": '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo", "days": 2}}\n</tool_call>'
    '\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
    "llama": '{"name": "get_weather", "parameters": {"city": "Oslo", "days": 2}}',
    "mistral": '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Oslo", "days": 2}}, '
    '{"name": "now", "arguments": {}}]',
    "mistral_args": '[TOOL_CALLS]get_weather[ARGS]{"city": "Oslo", "days": 2}[TOOL_CALLS]now[ARGS]{}',
    "deepseek": SAMPLES["deepseek"].replace(
        f"end{BAR}><{BAR}tool▁call▁begin", f"end{BAR}>\n<{BAR}tool▁call▁begin"
    ),
    "harmony": "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
    '{"city": "Oslo", "days": 2}',
}
CANONICAL["hermes"] = CANONICAL["generic"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("is_control", [False, True])
def test_what_must_be_called_can_be_written_as_the_family_writes_it_and_is_read_back(
    name: str, is_control: bool
) -> None:
    ids = control_ids(name) if is_control else {}
    grammar = grammar_of(name, WEATHER, NOW, control_ids=ids)
    text = CANONICAL[name]
    assert is_written(grammar, text, ids)
    for cut in range(1, len(text), 3):
        # The calls' own ends are the only places where an answer may stop.
        if is_written(grammar, text[:cut], ids) and not any(
            text[:cut].endswith(marker[:-1]) for marker in ids
        ):
            assert calls_of(blocks_of(name, text[:cut], (WEATHER, NOW)))
    assert not is_written(grammar, "Hello", ids, is_whole=False)
    assert not is_written(grammar, text.replace("get_weather", "nope"), ids, is_whole=False)
    assert not is_written(grammar, text.replace("2", '"2"'), ids, is_whole=False)


@pytest.mark.parametrize("name", NAMES)
def test_one_call_is_one_where_calls_are_not_parallel(name: str) -> None:
    grammar = grammar_of(name, WEATHER, NOW, is_parallel=False)
    assert not is_written(grammar, CANONICAL[name]) or len(calls_of(blocks_of(name, CANONICAL[name]))) == 1


def repeated(name: str, count: int) -> str:
    """So many calls of `now` in the family's canonical form, as far as one answer can hold them."""
    one = {"pythonic": "now()", "mistral": '{"name": "now", "arguments": {}}', "tool_code": "now()"}.get(name)
    if one is not None:
        around = {
            "pythonic": ("[", ", ", "]"),
            "mistral": ("[TOOL_CALLS][", ", ", "]"),
            "tool_code": ("```tool_code\n", "\n", "\n```"),
        }[name]
        return around[0] + around[1].join([one] * count) + around[2]
    if name in ("deepseek", "deepseek_plain"):
        head, tail = CANONICAL[name].split("begin", 1)[0], f"<{BAR}tool▁calls▁end{BAR}>"
        call = CANONICAL[name].rpartition(f"<{BAR}tool▁call▁begin")[2].removesuffix(tail)
        section = f"{head}begin{BAR}>"
        return (
            section
            + ("\n" if name == "deepseek" else "").join([f"<{BAR}tool▁call▁begin{call}"] * count)
            + tail
        )
    canonical = {
        "generic": '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
        "hermes": '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
        "qwen_xml": "<tool_call>\n<function=now>\n</function>\n</tool_call>",
        "mistral_args": "[TOOL_CALLS]now[ARGS]{}",
        "gemma": "<|tool_call>call:now{}<tool_call|>",
        "function_gemma": "<start_function_call>call:now{}<end_function_call>",
        "llama": '{"name": "now", "parameters": {}}',
        "harmony": "<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}",
    }[name]
    return ("\n" if name in ("generic", "hermes", "qwen_xml") else "").join([canonical] * count)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("is_control", [False, True])
def test_a_named_choice_is_exactly_one_call_and_nothing_can_follow(name: str, is_control: bool) -> None:
    ids = control_ids(name) if is_control else {}
    use = ToolUse((WEATHER, NOW), "required", allowed=("now",))
    grammar = tool_call_grammar(use, FAMILY[name], control_ids=ids)
    assert grammar is not None
    assert is_written(grammar, repeated(name, 1), ids)
    assert not is_written(grammar, repeated(name, 2), ids)
    assert is_over(grammar, repeated(name, 1), ids)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("llama", "harmony")])
def test_with_required_a_model_may_stop_after_any_call_and_must_after_the_last(name: str) -> None:
    grammar = grammar_of(name, WEATHER, NOW)
    for count in (1, 2, MAX_CALLS):
        assert is_written(grammar, repeated(name, count))
    assert not is_written(grammar, repeated(name, MAX_CALLS + 1))
    assert is_over(grammar, repeated(name, MAX_CALLS), {})


@pytest.mark.parametrize("name", ["generic", "qwen_xml", "mistral_args", "gemma", "tool_code"])
def test_with_auto_and_a_strict_tool_calls_are_bounded_too(name: str) -> None:
    grammar = grammar_of(name, Tool("now", parameters={}, is_strict=True), choice="auto")
    blocks = repeated(name, 1) * MAX_CALLS
    assert is_written(grammar, blocks)
    assert not is_written(grammar, blocks + repeated(name, 1))


def test_calls_beside_a_format_may_be_several_of_the_one_tool_that_is_allowed() -> None:
    use = ToolUse((WEATHER, NOW), "auto", allowed=("now",))
    grammar = tool_call_grammar(use, FAMILY["generic"], is_call_only=True)
    assert grammar is not None
    assert is_written(grammar, repeated("generic", 2))
    assert not is_written(grammar, "Hello", is_whole=False)


@pytest.mark.parametrize("name", NAMES)
def test_whatever_a_random_model_writes_under_force_is_a_valid_call(name: str) -> None:
    """The model here is a worst case: of the bytes that are allowed it takes any."""
    chance = random.Random(7)
    tools = (STRICT, NOW, Tool("pick", is_custom=True, text_format=Choice(("left", "right"))))
    grammar = grammar_of(name, *tools, is_parallel=False)
    tokenizer = LLTokenizer(TokenizerWrapper(Bytes(())))
    closing = '"]}>`\n' + "</parameter>escape<|"
    for _ in range(12):
        matcher = LLMatcher(tokenizer, grammar, log_level=0)
        written: list[int] = []
        while not matcher.is_stopped() and len(written) < 3000:
            mask = matcher.compute_logit_bias()
            allowed = [token for token in range(EOS + 1) if mask[token]]
            # It closes what it opens, else nothing here would end.
            wished = [token for token in allowed if token < EOS and chr(token) in closing]
            plain = [token for token in allowed if 32 <= token < 127 and chr(token) not in '"\\']
            pool = wished if wished and chance.random() < 0.5 else plain or allowed
            token = EOS if EOS in allowed else chance.choice(pool)
            assert matcher.consume_token(token), matcher.get_error()
            if token != EOS:
                written.append(token)
        if len(written) >= 3000:
            continue
        text = bytes(written).decode()
        [(called, arguments)] = calls_of(blocks_of(name, text, tools))
        if called == "pick":
            assert arguments in ("left", "right")
        elif called == "set":
            given = json.loads(arguments)
            assert given["unit"] in ("C", "F") and isinstance(given["at"]["hour"], int)
        else:
            assert json.loads(arguments) == {}


def test_a_custom_tools_text_keeps_its_format() -> None:
    grammar = grammar_of("generic", PATCH, LINES)
    call = '<tool_call>\n{"name": "patch", "arguments": {"input": "%s"}}\n</tool_call>'
    assert is_written(grammar, call % "a/b")
    assert not is_written(grammar, call % "A")
    lines = "<tool_call>\n<function=lines>\n<parameter=input>\n%s\n</parameter>\n</function>\n</tool_call>"
    assert is_written(grammar, lines % "begin\nab\ncd")
    assert not is_written(grammar, lines % "ab")
    assert calls_of(blocks_of("generic", lines % "begin\nab", (PATCH, LINES))) == [("lines", "begin\nab")]
    xml = "<tool_call>\n<function=patch>\n<parameter=input>\n%s\n</parameter>\n</function>\n</tool_call>"
    assert is_written(grammar_of("qwen_xml", PATCH), xml % "a/b")
    assert not is_written(grammar_of("qwen_xml", PATCH), xml % "A")


@pytest.mark.parametrize("name", ["generic", "qwen_xml", "mistral", "gemma", "deepseek", "tool_code"])
@pytest.mark.parametrize("is_control", [False, True])
def test_with_auto_text_is_free_and_a_strict_call_must_fit(name: str, is_control: bool) -> None:
    ids = control_ids(name) if is_control else {}
    strict = Tool(WEATHER.name, parameters=WEATHER.parameters, is_strict=True)
    grammar = grammar_of(name, strict, NOW, choice="auto", control_ids=ids)
    assert is_written(grammar, "", ids)
    assert is_written(grammar, "Hello <tool, [TOOL and ```\n", ids)
    assert is_written(grammar, f"Let me see. {CANONICAL[name]} Done", ids)
    assert not is_written(grammar, f"Let me see. {CANONICAL[name].replace('2', 'true')}", ids, is_whole=False)


def test_nothing_is_forced_where_nothing_asks_for_it() -> None:
    generic = FAMILY["generic"]
    assert tool_call_grammar(ToolUse(TOOLS, "none"), generic) is None
    assert tool_call_grammar(ToolUse((), "required"), generic) is None
    assert tool_call_grammar(ToolUse((WEATHER,), "auto"), generic) is None
    assert tool_call_grammar(ToolUse((WEATHER,), "required", allowed=()), generic) is None
    assert tool_call_grammar(ToolUse((STRICT,), "auto"), FAMILY["llama"]) is None


def test_a_named_choice_allows_one_name() -> None:
    grammar = tool_call_grammar(ToolUse((WEATHER, NOW), "required", allowed=("now",)), FAMILY["generic"])
    assert grammar is not None
    assert is_written(grammar, '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>')
    assert not is_written(grammar, '<tool_call>\n{"name": "get', is_whole=False)


def test_a_forced_grammar_nests_in_another() -> None:
    inner = grammar_of("generic", WEATHER, LINES)
    grammar = f'start: thought body\nthought[suffix="</think>"]: /(.|\\n)*/\nbody: %lark {{\n{inner}\n}}\n'
    assert is_written(grammar, "<think>hm</think>" + CANONICAL["generic"].split("\n<tool_call>")[0])
