"""What a client asks for becomes one grammar, checked with the library that will follow it."""

import re

import pytest
from bytewise import accepts
from hypothesis import given
from hypothesis import strategies as st

from ganglion.core.errors import InvalidValue
from ganglion.core.request import Choice, Constraint, Gbnf, JsonSchema, Lark, Regex, WithoutWords
from ganglion.text.constraint import MAX_BYTES, compose
from ganglion.text.markers import FAMILIES, GEMMA, HARMONY, THINK, MarkerFamily

PERSON = JsonSchema(
    {
        "type": "object",
        "properties": {"name": {"type": "string"}, "ages": {"type": "array", "items": {"type": "integer"}}},
        "required": ["name", "ages"],
        "additionalProperties": False,
    }
)
BOB = '{"name": "Bob", "ages": [1, 2]}'


def plain(constraint: Constraint) -> str | None:
    return compose(constraint, body=None, family=None, is_open=False, may_reason=False)


def chat(family: MarkerFamily, *, is_open: bool = False, may_reason: bool = True) -> str | None:
    return compose(PERSON, body=None, family=family, is_open=is_open, may_reason=may_reason)


def test_nothing_asked_is_no_grammar():
    assert compose(None, body=None, family=THINK, is_open=True, may_reason=True) is None


@pytest.mark.parametrize(
    ("text", "is_accepted"),
    [
        (BOB, True),
        ('{"name":"Bob","ages":[1,2]}', True),
        ('{"name": "Bob","ages": []}', True),
        ('{"name":  "Bob", "ages": []}', False),
        ('{"name" : "Bob", "ages": []}', False),
        ('{\n"name": "Bob", "ages": []}', False),
        (' {"name": "Bob", "ages": []}', False),
        (BOB + " ", False),
        ('{"name": "Bob"}', False),
        ('{"name": "Bob", "ages": ["1"]}', False),
        (BOB[:-1], False),
    ],
)
def test_json_is_on_one_line_with_at_most_a_space_after_a_sign(text, is_accepted):
    assert accepts(plain(PERSON), text) is is_accepted


def test_a_schema_cannot_say_how_it_is_compiled():
    schema = JsonSchema({"type": "array", "x-guidance": {"whitespace_flexible": True, "lenient": True}})
    assert not accepts(plain(schema), "[\n\n1]")


@given(
    st.lists(st.text("ab.*/\\[\n é", min_size=1, max_size=3), min_size=1, max_size=4),
    st.text("ab.*/\\[\n é", max_size=12),
)
def test_text_without_words_is_any_text_in_which_none_of_them_stands(words, text):
    is_without = not any(word in text for word in words)
    assert accepts(plain(WithoutWords(tuple(words))), text) is is_without


@pytest.mark.parametrize("schema", [{}, True])
def test_an_empty_schema_takes_any_json(schema):
    for text in ("1", '"x"', "null", '{"a": [1, {"b": false}]}'):
        assert accepts(plain(JsonSchema(schema)), text)


@pytest.mark.parametrize("schema", [None, 3, "object", [{}]])
def test_what_is_no_schema_is_refused(schema):
    with pytest.raises(InvalidValue, match="object or a boolean"):
        plain(JsonSchema(schema))


def test_one_of_is_read_as_any_of():
    assert accepts(plain(JsonSchema({"oneOf": [{"type": "null"}, {"type": "boolean"}]})), "true")


@pytest.mark.parametrize(
    ("pattern", "fits", "does_not"),
    [
        (r"\d{3}-\d{4}", "123-4567", "١٢٣-4567"),
        (r"[\w.]+@[\w]+", "a.b@c", "é@c"),
        (r"a/b\/c", "a/b/c", "a/bc"),
        ("a\nb", "a\nb", "a b"),
        ("", "", "x"),
        ("^(yes|no)$", "yes", "yesno"),
        (r"\\d", r"\d", "1"),
        (r"[^\s]+", "ab", "a b"),
    ],
)
def test_a_pattern_matches_the_whole_answer(pattern, fits, does_not):
    assert accepts(plain(Regex(pattern)), fits)
    assert not accepts(plain(Regex(pattern)), does_not)


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=20))
def test_every_escaped_text_is_a_pattern_of_itself(text):
    assert accepts(plain(Regex(re.escape(text))), text)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), min_size=1, max_size=5))
def test_each_option_is_accepted_and_nothing_longer(options):
    grammar = plain(Choice(tuple(options)))
    for option in options:
        assert accepts(grammar, option)
        assert accepts(grammar, option + "#") is (option + "#" in options)


def test_a_lark_grammar_stays_what_it_is():
    assert plain(Lark('start: "a"')) == 'start: "a"'


def test_a_gbnf_grammar_is_translated():
    assert accepts(plain(Gbnf('root ::= "a" [b-d]+ # done')), "abcd")


@pytest.mark.parametrize("family", [family for family in FAMILIES if not family.is_channel])
def test_reasoning_that_the_prompt_opened_is_free_until_its_marker(family):
    grammar = chat(family, is_open=True)
    closing = family.closing[0]
    assert accepts(grammar, f'Let {{me}} think…\n"so"{closing}\n\n{BOB}')
    assert accepts(grammar, f"{closing}{BOB}")
    assert not accepts(grammar, BOB)
    assert not accepts(grammar, f"thinking{closing}done")
    assert not accepts(grammar, f"thinking{closing}{' ' * 9}{BOB}")


@pytest.mark.parametrize("family", [family for family in FAMILIES if not family.is_channel])
def test_a_model_may_open_reasoning_itself_or_not(family):
    grammar = chat(family)
    assert accepts(grammar, f"{family.opening[0]}hm{family.closing[0]}\n{BOB}")
    assert accepts(grammar, BOB)
    assert not accepts(grammar, f"hm{family.closing[0]}{BOB}")


def test_a_model_that_may_not_reason_begins_with_its_answer():
    grammar = chat(THINK, may_reason=False)
    assert accepts(grammar, BOB)
    assert not accepts(grammar, f"<think></think>{BOB}")


def test_gemma_reasons_in_a_named_channel():
    assert accepts(chat(GEMMA), f"<|channel>thought\nhm<channel|>{BOB}")
    assert accepts(chat(GEMMA), BOB)
    assert accepts(chat(GEMMA, is_open=True), f"hm<channel|>{BOB}")
    assert not accepts(chat(GEMMA), f"<|channel>final\nhm<channel|>{BOB}")


def test_every_message_of_harmony_has_its_header():
    final = f"<|channel|>final<|message|>{BOB}"
    thoughts = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant"
    assert accepts(chat(HARMONY), final)
    assert accepts(chat(HARMONY), thoughts + thoughts + final)
    assert accepts(chat(HARMONY), f"<|channel|>final <|constrain|>json<|message|>{BOB}")
    assert accepts(chat(HARMONY, is_open=True), f"hm<|end|><|start|>assistant{final}")
    assert accepts(chat(HARMONY, may_reason=False), final)
    assert not accepts(chat(HARMONY, may_reason=False), thoughts + final)
    assert not accepts(chat(HARMONY), BOB)


def test_a_call_may_stand_in_for_the_format_and_follows_reasoning():
    body = 'start: "<tool_call>" %json {"const": {"name": "f"}} "</tool_call>"'
    call = '<tool_call>{"name":"f"}</tool_call>'
    grammar = compose(PERSON, body=body, family=THINK, is_open=True, may_reason=True)
    assert accepts(grammar, f"hm</think>{call}")
    assert accepts(grammar, f"hm</think>{BOB}")
    assert not accepts(grammar, "hm</think>Bob")
    forced = compose(None, body=body, family=THINK, is_open=True, may_reason=True)
    assert not accepts(forced, f"hm</think>{BOB}")
    harmony = compose(None, body=body, family=HARMONY, is_open=False, may_reason=True)
    assert accepts(harmony, call)
    assert accepts(harmony, f"<|channel|>analysis<|message|>hm<|end|><|start|>assistant{call}")


@pytest.mark.parametrize(
    "grammar", ['start: "}" /[{]/ "{"', 'start: a\na: "}{{"\n%ignore / /\n// }', 'start: /}/ "{{"']
)
def test_braces_of_a_grammar_do_not_end_it(grammar):
    whole = compose(Lark(grammar), body=None, family=THINK, is_open=True, may_reason=True)
    assert accepts(whole, "hm</think>}{{")


@pytest.mark.parametrize(
    "constraint",
    [
        Choice(()),
        Choice(("x" * (MAX_BYTES + 1),)),
        Lark("x" * (MAX_BYTES + 1)),
        Gbnf("x" * (MAX_BYTES + 1)),
        Regex("\ud800"),
        Choice(("\udfff",)),
        JsonSchema({"const": "\ud83d"}),
    ],
)
def test_what_is_empty_too_large_or_no_text_is_refused(constraint):
    with pytest.raises(InvalidValue):
        plain(constraint)


def test_a_schema_nested_beyond_reason_is_refused():
    schema: dict[str, object] = {}
    for _ in range(100_000):
        schema = {"items": schema}
    with pytest.raises(InvalidValue, match="deeply"):
        plain(JsonSchema(schema))


def test_an_integer_comes_to_an_end_and_keeps_the_bounds_it_has():
    endless = compose(
        JsonSchema({"type": "integer"}), body=None, family=None, is_open=False, may_reason=False
    )
    assert accepts(endless, str(2**53 - 1))
    assert accepts(endless, str(1 - 2**53))
    assert not accepts(endless, "1" * 17)
    large = JsonSchema({"type": "integer", "minimum": 10**16})
    grammar = compose(large, body=None, family=None, is_open=False, may_reason=False)
    assert accepts(grammar, str(10**16))
    assert not accepts(grammar, "5")


def test_values_inside_a_schema_are_left_as_they_are():
    schema = JsonSchema({"const": {"type": "integer"}})
    grammar = compose(schema, body=None, family=None, is_open=False, may_reason=False)
    assert accepts(grammar, '{"type":"integer"}')
