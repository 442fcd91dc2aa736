"""Calls are found the same way wherever an answer is split, and what is no call stays text."""

import json
import random
from itertools import count, pairwise

import pytest
from call_samples import BAR, FAMILY, NOW, PATCH, SAMPLES, TOOLS, TWO, WEATHER
from hypothesis import given, settings
from hypothesis import strategies as st

from ganglion.core.events import Closed, Delta, Finished, Opened, Piece, Started, Token, Usage
from ganglion.core.fold import fold
from ganglion.core.grammar import Grammar
from ganglion.core.request import Tool, ToolUse
from ganglion.text.markers import HARMONY, THINK
from ganglion.text.parts import CallRules, Part, PartSplitter
from ganglion.text.tools.calls import SLICE_CHARACTERS, HeldText
from ganglion.text.tools.cursor import Cursor
from ganglion.text.tools.families import callable_tools, family_of
from support.examples import examples

Blocks = list[tuple[str, str | None, str]]
NAMES = sorted(FAMILY)
# Harmony's calls are channels, whose headers are markers: what is no call loses them, as its other text does.
TEXT_NAMES = [name for name in NAMES if name != "harmony"]


def piece(text: str, position: int = 0, is_special: bool = False) -> Piece:
    return Piece(text, (Token(position, text.encode(), position),), is_special)


def splitter_of(
    name: str, tools: tuple[Tool, ...] = TOOLS, *, is_parallel: bool = True, keep_markers: bool = False
) -> PartSplitter:
    ids = count()
    rules = CallRules(FAMILY[name], tools, lambda: f"call_{next(ids)}", is_parallel)
    family = HARMONY if name == "harmony" else THINK
    return PartSplitter(family, is_open=False, keep_markers=keep_markers, calls=rules)


def parts_of(splitter: PartSplitter, pieces: list[Piece]) -> list[Part]:
    parts = [part for one in pieces for part in splitter.feed((one,))]
    parts += splitter.finish()
    grammar = Grammar()
    for event in [Started(1), *parts, Finished("stop", Usage(1, 1))]:
        grammar.feed(event)
    grammar.check_ended()
    return parts


def blocks_of(name: str, text: str | list[Piece], tools: tuple[Tool, ...] = TOOLS, **options: bool) -> Blocks:
    pieces = [piece(text)] if isinstance(text, str) else text
    parts = parts_of(splitter_of(name, tools, **options), pieces)
    answer = fold([*parts, Finished("stop", Usage(1, 1))])
    return [(block.kind, block.name, block.text) for block in answer.blocks]


def calls_of(blocks: Blocks) -> list[tuple[str | None, str]]:
    return [(name, text) for kind, name, text in blocks if kind == "tool_call"]


def cut_at(text: str, cuts: list[int]) -> list[Piece]:
    borders = [0, *sorted(cuts), len(text)]
    return [piece(text[a:b], at) for at, (a, b) in enumerate(pairwise(borders))]


def fragments_of(name: str) -> list[str]:
    """What a family's answers are made of, and what nearly is."""
    family = FAMILY[name]
    markers = sorted(family.markers)
    nearly = [marker[:-1] for marker in markers] + [marker[1:] for marker in markers]
    own = {
        "qwen_xml": [
            "<function=",
            "now>",
            "</function>",
            "<parameter=city>",
            "Oslo",
            "</parameter>",
            "<parameter",
        ],
        "pythonic": ["[", "]", "now(", ")", "city=", "'O\\'s'", ", ", "get_weather(", "1", "{'a': [", "}"],
        "llama": ["[", "]", "now(", ")", "; "],
        "tool_code": ["\n```", "now()", "get_weather(city='x')", "\n"],
        "gemma": ["call:", "now{", "get_weather{", "city:", '<|"|>', "}", ",", "[", "]", "x"],
        "function_gemma": ["call:now{", "call:get_weather{", "city:", "<escape>", "}", ",", "x"],
        "deepseek": ["function", "now", "\n```json\n", "\n```"],
        "harmony": [
            "<|channel|>",
            "commentary to=functions.now ",
            "<|constrain|>json",
            "<|message|>",
            "<|call|>",
            "<|start|>assistant",
            " to=functions.get_weather",
            "analysis",
            "final",
            "<|end|>",
        ],
    }.get(name, [])
    words = [
        '{"name": "now", ',
        '"arguments": {',
        '"arguments"',
        '{"name": "nope"',
        "}",
        "}}",
        '"',
        "\\",
        ", ",
        "]",
        "[",
    ]
    return [
        *markers,
        *nearly,
        *own,
        *words,
        "now",
        '{"city": "é\\u00e9',
        " ",
        "\n",
        "a",
        "<think>",
        SAMPLES[name],
    ]


@st.composite
def answers(draw: st.DrawFn, name: str) -> list[Piece]:
    """Fragments, those that are markers special or not, the others cut anywhere."""
    out: list[Piece] = []
    markers = FAMILY[name].markers | {"<|im_end|>", "<|channel|>", "<|message|>", "<|call|>"}
    for fragment in draw(st.lists(st.sampled_from([*fragments_of(name), "<|im_end|>"]), max_size=10)):
        if fragment in markers and draw(st.booleans()):
            out.append(piece(fragment, is_special=True))
        else:
            cut = draw(st.integers(0, len(fragment)))
            out += [piece(text) for text in (fragment[:cut], fragment[cut:])]
    return [piece(one.text, position, one.is_special) for position, one in enumerate(out)]


def merged(pieces: list[Piece]) -> list[Piece]:
    out: list[Piece] = []
    for one in pieces:
        if out and not one.is_special and not out[-1].is_special:
            out[-1] = Piece(out[-1].text + one.text, out[-1].tokens + one.tokens)
        else:
            out.append(one)
    return out


@pytest.mark.parametrize("name", NAMES)
def test_a_familys_calls_are_read_whole_and_at_every_split(name: str) -> None:
    text = SAMPLES[name]
    assert calls_of(blocks_of(name, text)) == TWO
    for cut in range(len(text)):
        assert blocks_of(name, cut_at(text, [cut])) == [("tool_call", *call) for call in TWO]
    assert calls_of(blocks_of(name, cut_at(text, list(range(len(text)))))) == TWO


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("before", ["", "Let me see. "])
def test_an_answer_that_is_cut_anywhere_shows_no_half_marker(name: str, before: str) -> None:
    is_bare = bool(FAMILY[name].bare)
    if is_bare and before:
        return  # such a call begins an answer or is none
    text = before + SAMPLES[name]
    for cut in range(len(text) + 1):
        splitter = splitter_of(name)
        parts = [part for one in cut_at(text[:cut], list(range(cut))) for part in splitter.feed((one,))]
        parts += splitter.finish(is_cut=True)
        answer = fold([*parts, Finished("length", Usage(1, 1))])
        shown = answer.text("text")
        called = [(block.name, block.text) for block in answer.blocks if block.kind == "tool_call"]
        for (called_name, arguments), (expected_name, expected) in zip(called, TWO, strict=False):
            assert called_name == expected_name
            assert expected.replace(" ", "").startswith(arguments.replace(" ", "").removesuffix("}"))
        # Where no marker opens a call, its beginning may as well be an answer in JSON.
        assert before.startswith(shown) or (is_bare and not called), (cut, shown)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=examples(60))
@given(data=st.data())
def test_borders_between_pieces_change_nothing(name: str, data: st.DataObject) -> None:
    pieces = data.draw(answers(name))
    assert blocks_of(name, pieces) == blocks_of(name, merged(pieces))


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=examples(40))
@given(data=st.data())
def test_tokens_come_out_once_and_in_order(name: str, data: st.DataObject) -> None:
    parts = parts_of(splitter_of(name), data.draw(answers(name)))
    ids = [token.id for part in parts if isinstance(part, Delta) for token in part.tokens]
    assert ids == sorted(set(ids))


def is_in_order(texts: list[str], whole: str) -> bool:
    position = 0
    for text in texts:
        position = whole.find(text, position)
        if position < 0:
            return False
        position += len(text)
    return True


def test_ten_thousand_outputs_streamed_are_the_whole_and_their_text_is_theirs() -> None:
    chance = random.Random(18)
    fragments = {name: fragments_of(name) for name in NAMES}
    for number in range(10_000):
        name = NAMES[number % len(NAMES)]
        text = "".join(chance.choices(fragments[name], k=chance.randint(1, 6)))
        cuts = [chance.randint(0, len(text)) for _ in range(chance.randint(1, 8))]
        whole = blocks_of(name, text)
        assert blocks_of(name, cut_at(text, cuts)) == whole, text
        assert is_in_order([shown for kind, _, shown in whole if kind == "text"], text), text


@pytest.mark.parametrize("name", TEXT_NAMES)
@settings(max_examples=examples(40))
@given(data=st.data())
def test_where_nothing_can_be_called_every_character_is_text(name: str, data: st.DataObject) -> None:
    text = "".join(data.draw(st.lists(st.sampled_from(fragments_of(name)), max_size=10)))
    text = "." + text.replace("<think>", "")
    assert blocks_of(name, text, (Tool("another"),)) == [("text", None, text)]


ENDLESS = {
    "near misses": lambda name, n: ("".join(FAMILY[name].openings) + "x") * n,
    "openings": lambda name, n: "".join(FAMILY[name].openings) * n,
    "calls": lambda name, n: SAMPLES[name] * n,
    "held arguments": lambda name, n: '<tool_call>{"arguments": {' + '"a": [1, {}, "<tool_call>"], ' * n,
    "deep": lambda name, n: '{"name": "now", "parameters": ' + "[" * n,
    "python": lambda name, n: "[now(a=[" + "'x', " * n,
}


@pytest.mark.parametrize("kind", ENDLESS)
@pytest.mark.parametrize("name", TEXT_NAMES)
@pytest.mark.parametrize("size", [1, 1_000_000])
def test_the_work_grows_with_the_text_and_no_faster(
    name: str, kind: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = 0
    feed, text_of, take = Cursor.feed, HeldText.text, HeldText.take

    def counted_feed(self: Cursor, text: str) -> None:
        nonlocal work
        feed(self, text)
        work += len(self._text)

    def counted_text(self: HeldText) -> str:
        nonlocal work
        text = text_of(self)
        work += len(text)
        return text

    def counted_take(self: HeldText, characters: int) -> list[Piece]:
        nonlocal work
        taken = take(self, characters)
        work += len(taken) + sum(len(one.text) for one in taken)
        return taken

    monkeypatch.setattr(Cursor, "feed", counted_feed)
    monkeypatch.setattr(HeldText, "text", counted_text)
    monkeypatch.setattr(HeldText, "take", counted_take)

    def work_of(repeats: int) -> float:
        nonlocal work
        work = 0
        text = ENDLESS[kind](name, repeats)
        splitter = splitter_of(name)
        for at in range(0, len(text), size * 3):
            splitter.feed((piece(text[at : at + size * 3]),))
        splitter.finish()
        return work / max(len(text), 1)

    # Work a character: the same for a text ten times as long, apart from what a slice may cost.
    assert work_of(300) <= 2 * work_of(30) + SLICE_CHARACTERS


def test_the_name_leaves_before_the_arguments_and_they_leave_as_they_come() -> None:
    splitter = splitter_of("hermes")
    assert splitter.feed((piece('<tool_call>\n{"name": "get_weather"'),)) == [
        Opened(0, "tool_call", "call_0", "get_weather")
    ]
    fed = [
        splitter.feed((piece(text, at),)) for at, text in enumerate([', "argum', 'ents": {"ci', 'ty": "Os'])
    ]
    assert [[part.text for part in parts if isinstance(part, Delta)] for parts in fed] == [
        [],
        ['{"ci'],
        ['ty": "Os'],
    ]
    assert splitter.feed((piece('lo"}}\n</tool_call>'),)) == [
        Delta(0, 'lo"}', ()),
        Closed(0),
    ]
    assert splitter.has_calls


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('<tool_call>{"name": "nope", "arguments": {}}</tool_call>', None),
        ("<tool_call>not JSON</tool_call>", None),
        ('<tool_call>{"city": "Oslo"}</tool_call>', None),
        ("Use <tool_call> to call.", None),
        ('<tool_call>{"name": "now", "arguments": {}', "{}"),
        ('<tool_call>{"name": "now"}</tool_call>', "{}"),
        ('<tool_call>{"name": "now", "arguments": null}</tool_call>', "{}"),
        ('<tool_call>{"name": "now", "arguments": "{\\"a\\": 1}"}</tool_call>', '{"a": 1}'),
        ('<tool_call>{"name": "now", "arguments": {"a": 1}</tool_call>', '{"a": 1}'),
        ('<tool_call>{"name": "now", "arguments": {\'a\': 1}}</tool_call>', "{'a': 1}}"),
        (
            '<tool_call>{"name": "now", "arguments": {"a": "</tool_call>"}}</tool_call>',
            '{"a": "</tool_call>"}',
        ),
        ('<tool_call>{"name": "now", "arguments": {"a": "\\ud83d', '{"a": "\\ud83d'),
    ],
)
def test_a_block_is_a_call_or_goes_back_to_the_text(text: str, expected: str | None) -> None:
    blocks = [("text", None, text)] if expected is None else [("tool_call", "now", expected)]
    assert blocks_of("hermes", text) == blocks
    assert all(blocks_of("hermes", cut_at(text, [cut])) == blocks for cut in range(len(text)))


def test_text_around_calls_keeps_its_place() -> None:
    text = 'Let me see.\n<tool_call>{"name": "now"}</tool_call>\n\nDone. <tool_call>'
    assert blocks_of("hermes", text) == [
        ("text", None, "Let me see.\n"),
        ("tool_call", "now", "{}"),
        ("text", None, "Done. <tool_call>"),
    ]


def test_calls_follow_reasoning_and_are_not_looked_for_inside_it() -> None:
    call = '<tool_call>{"name": "now"}</tool_call>'
    assert blocks_of("hermes", f"<think>{call}</think>\n\n{call}") == [
        ("reasoning", None, call),
        ("tool_call", "now", "{}"),
    ]
    assert blocks_of("hermes", f"<think>so</think>{call}", keep_markers=True) == [
        ("text", None, "<think>so</think>"),
        ("tool_call", "now", "{}"),
    ]


def test_an_answer_in_json_is_not_held_by_a_bare_family() -> None:
    splitter = splitter_of("llama")
    assert splitter.feed((piece('{"answer": '),)) == [
        Opened(0, "text"),
        Delta(0, '{"answer":', ()),
        Delta(0, " ", piece('{"answer": ').tokens),
    ]
    assert blocks_of("llama", "[1] says so (a=1)") == [("text", None, "[1] says so (a=1)")]


@pytest.mark.parametrize(
    ("value", "schema", "expected"),
    [
        ("5", {"type": "integer"}, 5),
        ("-2.5", {"type": "number"}, -2.5),
        ("True", {"type": "boolean"}, True),
        ("false", {"type": ["boolean", "null"]}, False),
        ("None", {"anyOf": [{"type": "string"}, {"type": "null"}]}, None),
        ('{"a": [1]}', {"type": "object"}, {"a": [1]}),
        ('["x"]', {"items": {"type": "string"}}, ["x"]),
        ("5", {"type": "string"}, "5"),
        ("5", None, "5"),
        ("5", {"$ref": "#/properties/y"}, 5),
        ("five", {"type": "integer"}, "five"),
        ("{broken", {"type": "object"}, "{broken"),
        ("[NaN]", {"type": "array"}, "[NaN]"),
        ("2", {"enum": [1, 2]}, 2),
        ('say "é"\nand \\ </parameter', {"type": "string"}, 'say "é"\nand \\ </parameter'),
        ("", {"type": "string"}, ""),
    ],
)
def test_values_of_xml_have_the_type_that_the_schema_gives_them(
    value: str, schema: dict[str, object] | None, expected: object
) -> None:
    properties = {} if schema is None else {"x": schema, "y": {"type": "integer"}}
    tool = Tool("f", parameters={"type": "object", "properties": properties})  # type: ignore[dict-item]
    text = f"<tool_call>\n<function=f>\n<parameter=x>\n{value}\n</parameter>\n</function>\n</tool_call>"
    [(_, _, written)] = blocks_of("qwen_xml", text, (tool,))
    assert json.loads(written) == {"x": expected}


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (
            """f(a='it\\'s', b="\\u00e9\\n", c=[1, -2.5e3, (True, None)], d={"k": {'l': false}})""",
            {"a": "it's", "b": "é\n", "c": [1, -2500.0, [True, None]], "d": {"k": {"l": False}}},
        ),
        ("f(a='\\ud800')", {"a": "\ufffd"}),
        ("f( a = 1 , )", {"a": 1}),
        ("f(1)", None),
        ("f(a=__import__('os'))", None),
        ("f(a=1+1)", None),
        ("f(a=" + "[" * 200 + "]" * 200 + ")", None),
        ("f(a=1", None),
    ],
)
def test_python_is_read_and_never_run(written: str, expected: object) -> None:
    blocks = blocks_of("pythonic", f"[{written}]", (Tool("f"),))
    if expected is None:
        assert blocks == [("text", None, f"[{written}]")]
    else:
        assert [json.loads(text) for _, _, text in blocks] == [expected]


def test_gemma_strings_are_verbatim_and_values_nest() -> None:
    text = (
        '<|tool_call>call:f{a:<|"|>say "x", {y}<|"|>,b:{c:[1,<|"|>z<|"|>,true],"d":None},e:word}<tool_call|>'
    )
    pieces = [
        piece(part, at, part in FAMILY["gemma"].markers) for at, part in enumerate(_by_marker(text, "gemma"))
    ]
    for given_text in (text, pieces):
        [(_, _, written)] = blocks_of("gemma", given_text, (Tool("f"),))
        assert json.loads(written) == {
            "a": 'say "x", {y}',
            "b": {"c": [1, "z", True], "d": None},
            "e": "word",
        }


def _by_marker(text: str, name: str) -> list[str]:
    out = [text]
    for marker in FAMILY[name].markers:
        out = [part for one in out for part in _apart(one, marker, FAMILY[name].markers)]
    return out


def _apart(text: str, marker: str, markers: frozenset[str]) -> list[str]:
    if text in markers or marker not in text:
        return [text]
    before, _, after = text.partition(marker)
    return [*([before] if before else []), marker, *(_apart(after, marker, markers) if after else [])]


def test_control_tokens_of_no_family_are_no_part_of_a_call() -> None:
    pieces = [
        piece('<tool_call>{"name": "now", "arguments": {"a": 1'),
        piece("<|im_end|>", 1, is_special=True),
    ]
    assert blocks_of("hermes", pieces) == [("tool_call", "now", '{"a": 1')]
    pieces = [piece("[TOOL_CALLS]", 0, is_special=True), piece("nothing", 1)]
    assert blocks_of("mistral", pieces) == [("text", None, "nothing")]
    pieces = [piece("<tool_call>", 0, is_special=True), piece(" is a tag", 1)]
    assert blocks_of("hermes", pieces) == [("text", None, "<tool_call> is a tag")]


@pytest.mark.parametrize("name", NAMES)
def test_after_the_one_call_that_is_allowed_the_rest_is_dropped(name: str) -> None:
    assert blocks_of(name, SAMPLES[name] + " and text", is_parallel=False) == [("tool_call", *TWO[0])]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"input": "*** Begin\\n\\tx \\"y\\" \\u00e9\\ud83d\\ude00"}', '*** Begin\n\tx "y" é😀'),
        ('{"input": "a \\d+ b"}', "a \\d+ b"),
        ('"just text"', "just text"),
        ('{"other": 1}', '{"other": 1}'),
        ('{"input": 5}', '{"input": 5}'),
        ('{"input": "cut', "cut"),
    ],
)
def test_a_custom_tool_is_given_the_bare_text(arguments: str, expected: str) -> None:
    text = f'<tool_call>{{"name": "apply_patch", "arguments": {arguments}}}</tool_call>'
    if arguments.endswith("cut"):
        text = text.removesuffix("}</tool_call>")
    for pieces in (text, *(cut_at(text, [cut]) for cut in range(len(text)))):
        assert calls_of(blocks_of("generic", pieces)) == [("apply_patch", expected)]
    if "\\d" in arguments:
        return
    harmony = f"<|channel|>commentary to=functions.apply_patch <|message|>{arguments}"
    assert calls_of(blocks_of("harmony", harmony)) == [("apply_patch", expected)]


def test_a_harmony_channel_calls_a_tool_that_there_is() -> None:
    text = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant" + SAMPLES["harmony"]
    assert blocks_of("harmony", text) == [("reasoning", None, "hm"), *[("tool_call", *call) for call in TWO]]
    assert blocks_of("harmony", "<|channel|>commentary to=functions.nope<|message|>{}<|call|>") == [
        ("text", None, "{}")
    ]
    assert blocks_of("harmony", "<|channel|>commentary to=functions.now<|message|><|call|>") == [
        ("tool_call", "now", "")
    ]
    assert blocks_of("harmony", "<|channel|>commentary to=functions.now") == []
    assert blocks_of("harmony", " to=functions.now<|channel|>commentary json<|message|>{}") == [
        ("tool_call", "now", "{}")
    ]


TEMPLATES = {
    "hermes": "{{ tools }}<tool_call>",
    "qwen_xml": "{{ tools }}<tool_call><function=x><parameter=y>",
    "llama": "{{ tools }}<|python_tag|>",
    "pythonic": "{{ tools }}[func_name1(params_name1=...)]<|python_tag|>",
    "mistral": "{{ tools }}[TOOL_CALLS]",
    "mistral_args": "{{ tools }}[TOOL_CALLS][ARGS]",
    "gemma": "{{ tools }}<|tool_call>call:<|channel>",
    "function_gemma": "{{ tools }}<start_function_call>",
    "tool_code": "{{ tools }}```tool_code",
    "deepseek": f"{{{{ tools }}}}<{BAR}tool▁calls▁begin{BAR}><{BAR}tool▁sep{BAR}>```json",
    "deepseek_plain": f"{{{{ tools }}}}<{BAR}tool▁calls▁begin{BAR}><{BAR}tool▁sep{BAR}>",
    "harmony": "{{ tools }}<|channel|>analysis<|message|>",
    "generic": "<tool_call> but no word of what there is",
}


def test_a_family_is_known_by_its_template() -> None:
    assert {name: family_of(template).name for name, template in TEMPLATES.items()} == {
        name: name for name in TEMPLATES
    }
    assert set(TEMPLATES) == set(FAMILY)
    assert family_of(None).name == family_of("{{ tools }} of some other form").name == "generic"


def test_only_what_is_allowed_can_be_called() -> None:
    assert callable_tools(ToolUse(TOOLS, "none")) == ()
    assert callable_tools(ToolUse(TOOLS)) == (WEATHER, NOW, PATCH)
    assert callable_tools(ToolUse(TOOLS, allowed=("now",))) == (NOW,)
