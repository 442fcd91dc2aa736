"""Two hundred and more formats that nobody means well: each is a few kilobytes that ask for much."""

import json
from collections.abc import Iterator

from ganglion.core.request import Choice, Constraint, Gbnf, JsonSchema, JsonValue, Lark, Regex


def corpus() -> list[tuple[str, Constraint]]:
    """Every case with its name."""
    cases = [*_schemas(), *_patterns(), *_grammars(), *_gbnf(), *_nonsense()]
    return [(f"{number} {name}", constraint) for number, (name, constraint) in enumerate(cases)]


def _nested(depth: int, key: str, leaf: JsonValue, *, is_list: bool = False) -> JsonValue:
    value = leaf
    for _ in range(depth):
        value = {key: [value] if is_list else value}
    return value


def _schemas() -> Iterator[tuple[str, Constraint]]:
    for depth in (50, 150, 400, 800):
        for key, is_list in (
            ("items", False),
            ("anyOf", True),
            ("allOf", True),
            ("oneOf", True),
            ("not", False),
        ):
            yield f"{key} {depth} deep", JsonSchema(_nested(depth, key, {}, is_list=is_list))
        properties: JsonValue = {}
        for _ in range(depth):
            properties = {"type": "object", "properties": {"a": properties}, "required": ["a"]}
        yield f"objects {depth} deep", JsonSchema(properties)
    for count in (1_000, 5_000, 20_000):
        yield f"enum of {count}", JsonSchema({"enum": [f"value {number}" for number in range(count)]})
        yield f"numbers of {count}", JsonSchema({"enum": list(range(count))})
        properties = {f"p{number}": {} for number in range(count)}
        yield f"{count} properties", JsonSchema({"type": "object", "properties": properties})
        yield f"{count} required", JsonSchema({"required": [f"p{number}" for number in range(count)]})
    for count in (8, 12, 20, 60):
        product: list[JsonValue] = [
            {"anyOf": [{"properties": {f"p{each}": {"const": value}}} for value in range(3)]}
            for each in range(count)
        ]
        yield f"product of {count}", JsonSchema({"allOf": product})
    for count in (6, 10, 100):
        patterns: list[JsonValue] = [
            {"type": "string", "pattern": f"^.*x{{{each}}}.*y$"} for each in range(count)
        ]
        yield f"{count} patterns at once", JsonSchema({"allOf": patterns})
        disjoint: dict[str, JsonValue] = {f"^a{{{each}}}b.*$": {} for each in range(count)}
        yield f"{count} pattern properties", JsonSchema({"patternProperties": disjoint})
    for depth in (10, 20, 30, 60):
        for key in ("allOf", "anyOf", "prefixItems"):
            definitions: dict[str, JsonValue] = {
                f"d{each}": {key: [{"$ref": f"#/$defs/d{each + 1}"}] * 2} for each in range(depth)
            }
            definitions[f"d{depth}"] = {"type": "object", "properties": {"a": {}}}
            yield f"{key} doubled {depth} times", JsonSchema({"$defs": definitions, "$ref": "#/$defs/d0"})
    for bound in (10**3, 10**6, 10**9, 10**18):
        yield f"{bound} items", JsonSchema({"type": "array", "minItems": bound, "maxItems": bound})
        yield f"{bound} characters", JsonSchema({"type": "string", "minLength": bound})
        yield f"{bound} at most", JsonSchema({"type": "string", "maxLength": bound, "pattern": "^(a|b)*c$"})
        yield f"{bound} members", JsonSchema({"type": "object", "minProperties": bound})
        yield f"multiple of {bound}", JsonSchema({"type": "integer", "multipleOf": bound})
        yield f"from {bound}", JsonSchema({"type": "integer", "minimum": -bound, "maximum": bound})
    yield (
        "primes",
        JsonSchema({"allOf": [{"type": "integer", "multipleOf": each} for each in (99991, 99989)]}),
    )
    for schema in (
        {"$ref": "#"},
        {"allOf": [{"$ref": "#"}]},
        {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]},
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
        {"$ref": "http://127.0.0.1:1/schema"},
        {"$ref": "file:///etc/passwd"},
        {"$ref": "#/$defs/" + "a/" * 2000},
        {"type": "number", "minimum": -1.7e308, "maximum": 1.7e308},
        {"type": "number", "multipleOf": 1e-300},
        {"type": "array", "items": {"$ref": "#"}, "minItems": 10**6},
        {"const": "x" * 100_000},
        {"type": ["string"] * 5000},
        False,
    ):
        yield json.dumps(schema)[:40], JsonSchema(schema)


def _patterns() -> Iterator[tuple[str, Constraint]]:
    for count in (10, 25, 100, 1_000):
        yield f"a? times {count}", Regex("a?" * count + "a" * count)
        yield f"{count} from the end", Regex(f"(a|b)*a(a|b){{{count}}}")
        yield f"{count} groups", Regex("(" * count + "a" + ")" * count)
        yield f"{count} stars", Regex("(" * count + "a" + ")*" * count)
        yield f"{count} choices of a choice", Regex("(a|b|ab)" * count)
        yield f"{count} scripts", Regex(r"(\p{L}|\p{N}|[^\p{Lu}])" * count)
    for count in (10**3, 10**6, 10**9, 10**12):
        yield f"anything {count} times", Regex(f"(.|\n){{{count}}}")
        yield f"words {count} times", Regex(rf"(\w+\s){{0,{count}}}")
    for depth in (3, 5, 8):
        yield f"repeats {depth} deep", Regex("(" * depth + "a" + "){1,100}" * depth)
    for pattern in (
        r"(a+)+$",
        r"(a|a)*b",
        r"(.*)*x",
        r"(?=a)b",
        r"(a)\1",
        r"(?<!a)b",
        r"\b\B",
        "[",
        "(",
        "*",
        "\\",
    ):
        yield pattern, Regex(pattern)


def _grammars() -> Iterator[tuple[str, Constraint]]:
    for count in (10, 20, 25, 60, 1_000):
        rules = "".join(f"r{each}: r{each + 1} r{each + 1}\n" for each in range(count))
        yield f"rules doubled {count} times", Lark(f'start: r0\n{rules}r{count}: "a"')
        yield (
            f"terminals doubled {count} times",
            Lark(f'start: r0\n{rules}r{count}: "a"'.replace("r", "R").replace("staRt: ", "start: ")),
        )
        yield f"{count} parentheses", Lark(f'start: {"(" * count}"a"{")" * count}')
        yield f"{count} in a row", Lark(f'start: ("a" | "b" start?){{{count * 1000}}}')
    for grammar in (
        'start: a\na: a a | "x" | ""',
        "start: a a a a a a a a\na: a a a | /x*/ | b\nb: a b | a",
        "start: start",
        "start: start start | start",
        "start: X\nX: "
        + " & ".join(f"/(.|\\n)*{chr(97 + each)}(.|\\n){{{15 + each}}}/" for each in range(10)),
        "start: /~((a|b)*a(a|b){15})/",
        "start: " + "%lark { start: " * 500 + '"a"' + "}" * 500,
        "start: " + " | ".join(f'"{each}"' for each in range(20_000)),
        "%import common.WORD\nstart: WORD",
        "%llguidance {" * 100,
        "start: <[0-999999999]>",
        "start: <|nothing|>",
        "start: %regex { }",
        "start: %json {",
    ):
        yield grammar[:40], Lark(grammar)


def _gbnf() -> Iterator[tuple[str, Constraint]]:
    for count in (10, 60, 2_000):
        rules = "".join(f"r{each} ::= r{each + 1} r{each + 1}\n" for each in range(count))
        yield f"gbnf doubled {count} times", Gbnf(f'root ::= r0\n{rules}r{count} ::= "a"')
        yield f"gbnf {count} parentheses", Gbnf("root ::= " + "(" * count + '"a"' + ")" * count)
        yield f"gbnf {count} thousand times", Gbnf(f'root ::= ("a" | root "b"){{{count * 1000}}}')
    for grammar in (
        "root ::= root",
        "root ::= root root | root",
        "root ::= (root*)*",
        'root ::= (""*)*',
        "root ::=",
    ):
        yield grammar, Gbnf(grammar)


def _nonsense() -> Iterator[tuple[str, Constraint]]:
    yield "no options", Choice(())
    yield "20000 options", Choice(tuple(f"option {each}" for each in range(20_000)))
    yield "a long option", Choice(("x" * 200_000,))
    for text in (
        "",
        "\0",
        "start",
        "::=",
        "{}",
        "%",
        "/" * 1000,
        "\\" * 1001,
        "\ufeffstart: x",
        "start: '\n'",
        "é: ü",
    ):
        yield f"lark {text!r:.20}", Lark(text)
        yield f"gbnf {text!r:.20}", Gbnf(text)
        yield f"pattern {text!r:.20}", Regex(text)
    for value in (
        None,
        1,
        "x",
        [],
        {"type": 5},
        {"type": "x"},
        {"properties": 3},
        {"enum": {}},
        {"items": "x"},
        {"required": 1},
    ):
        yield f"schema {value!r:.20}", JsonSchema(value)
