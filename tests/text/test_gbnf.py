"""GBNF in the words of Lark: the same texts are accepted."""

import time
from contextlib import suppress

import pytest
from bytewise import accepts

from ganglion.core.errors import InvalidValue
from ganglion.text.gbnf import lark_of

JSON = r"""
# llama.cpp's own grammar of JSON, shortened
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws

object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws

array  ::= "[" ws ( value ("," ws value)* )? "]" ws

string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4})
  )* "\"" ws

number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws

ws ::= | " " | "\n" [ \t]{0,20}
"""

ARITHMETIC = r"""root  ::= (expr "=" ws term "\n")+
expr  ::= term ([-+*/] term)*
term  ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num   ::= [0-9]+ ws
ws    ::= [ \t\n]*"""


@pytest.mark.parametrize(
    ("grammar", "fits", "does_not"),
    [
        ('root ::= "yes" | "no"', ["yes", "no"], ["", "yesno", "maybe"]),
        ("root ::= [a-c^]+ [^a-c]", ["a^c!", "c\n"], ["ac", "d"]),
        (r"root ::= [-+] [za-] [\]\[/]", ["-a]", "+-/", "-z["], ["xa]", "-b]"]),
        ('root ::= "a"{2,3} "b"{2} "c"{1,}', ["aabbc", "aaabbccc"], ["abbc", "aabc"]),
        (r'root ::= "\x41\u00e9\U0001F600\"\\\n\t"', ['Aé😀"\\\n\t'], ["A"]),
        ("root ::= . .", ["\n\n", "é/"], ["a"]),
        ("root ::= a-b a_b*\na-b ::= [x]\na_b ::= [y]", ["x", "xyy"], ["y"]),
        ('root ::= ("a" | ) "b"\n', ["ab", "b"], ["a"]),
        ('root ::= "(" root ")" | "x"', ["x", "((x))"], ["((x)", "()"]),
        ('root ::= "a *b" " ?"', ["a *b ?"], ["a*b?"]),
        ('root ::= [a-z] "bz" | "abc"', ["abz", "abc"], ["ab"]),
        ('root ::= "a"\n  | "b" # or\n\n', ["a", "b"], ["ab"]),
        (
            JSON,
            ['{"a": [1, -2.5e1, "x\\u00e9\\n"], "b": {"c": null}}', "{}"],
            ['{"a": 01x}', "[1]", '{"a":}'],
        ),
        (ARITHMETIC, ["x +(1*2) = y\n", "1=2\na=b\n", "1=2\n\n"], ["x=", "x==y\n", "x + y = z\n\n"]),
    ],
)
def test_the_translation_accepts_the_same_texts(grammar, fits, does_not):
    lark = lark_of(grammar)
    assert [text for text in fits if not accepts(lark, text)] == []
    assert [text for text in does_not if accepts(lark, text)] == []


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        ("", "no rule `root`"),
        ('start ::= "a"', "no rule `root`"),
        ("root ::= nope", "'nope' is used and not defined"),
        ('root ::= "a"\nroot ::= "b"', "defined twice"),
        ('"a"', "begins with its name"),
        ('root ::= "a', "was expected"),
        ('root ::= "\\q"', "escape"),
        ("root ::= []", "empty"),
        (r'root ::= "\UFFFFFFFF"', "no character"),
        ("root = x", "begins with its name"),
        ("root ::= [a", "was expected"),
        ("root ::= (([a])", "not closed"),
        ("root ::= [a])", "not opened"),
        ("root ::= * [a]", "repeat"),
        ("root ::= " + "(" * 99 + ")" * 99, "nested"),
    ],
)
def test_what_is_no_gbnf_is_refused_with_the_reason(grammar, reason):
    with pytest.raises(InvalidValue) as caught:
        lark_of(grammar)
    assert reason in caught.value.message


@pytest.mark.parametrize(
    "grammar",
    [
        "root ::= " + "(" * 200_000,
        "root ::= " + "a " * 100_000 + "\na ::= [x]",
        "".join(f"r{number} ::= r{number + 1}\n" for number in range(20_000)) + 'r20000 ::= "x"\nroot ::= r0',
        "root ::= r0\n" + "".join(f"r{n} ::= r{n + 1} r{n + 1}\n" for n in range(60)) + 'r60 ::= "x"',
        "#" * 300_000 + "\nroot ::= [a]",
        "x" * 400_000,
        " " * 400_000 + "root",
    ],
)
def test_translating_takes_time_that_is_linear(grammar):
    began_s = time.process_time()
    with suppress(InvalidValue):
        lark_of(grammar)
    assert time.process_time() - began_s < 2.0
