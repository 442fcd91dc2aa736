"""The table of wires: whoever passes calls on reads it, and names none of them."""

import ast
import subprocess
import sys
from pathlib import Path
from typing import get_args

import ganglion.gateway
from ganglion.gateway.proxy.routes import route_of
from ganglion.wire import openai_errors, openapi
from ganglion.wire.dialects import ALL_WIRES, DIALECTS, dialect_of_path, error_format_of
from ganglion.wire.foreign_wires import ForeignWire

NOT_SERVED = {"/api/push", "/api/create", "/api/copy", "/api/delete"}
"""Ollama's routes that a key without rights must not even ask for."""


def test_the_gateway_names_no_wire() -> None:
    room = Path(ganglion.gateway.__file__).parent
    named = {
        (path.relative_to(room).as_posix(), node.value)
        for path in room.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and node.value in ALL_WIRES
    }
    assert named == {("metrics.py", "prompt")}, "only the label of a prompt's tokens is spelt like a wire"


def test_every_route_of_the_table_is_documented_and_found_by_the_gateway() -> None:
    operations = {(operation.method.upper(), operation.path) for operation in openapi.GATEWAY.operations}
    for dialect in DIALECTS:
        for route in dialect.routes:
            found = route_of(route.method.encode(), route.path.encode())
            assert (found.access, found.errors) == (route.access, error_format_of(route.path))
            if route.access == "key":
                assert (found.wire, found.dialect) == (dialect.name, dialect.proxy)
                assert (route.method, route.path) in operations
            elif route.method == "POST" and route.path not in NOT_SERVED:
                assert (route.method, route.path) in operations | {("POST", "/api/pull")}


def test_whatever_generates_and_is_not_stored_has_an_answer_format() -> None:
    for dialect in DIALECTS:
        generating = [route.path for route in dialect.routes if route.generates and not route.is_stored]
        assert [answers.path for answers in dialect.answers] == generating


def test_paths_below_a_wire_and_clients_that_say_what_they_are_get_its_errors() -> None:
    by_name = {dialect.name: dialect for dialect in DIALECTS}
    assert dialect_of_path("/v1/messages/x") is by_name["messages"]
    assert dialect_of_path("/nowhere", lambda name: name == "anthropic-version") is by_name["messages"]
    assert dialect_of_path("/api/chat", lambda _: True) is by_name["ollama"]
    assert error_format_of("/v1/chat/completions") is openai_errors.ERRORS


def test_what_a_foreign_server_may_be_declared_to_speak_is_in_the_table() -> None:
    assert set(get_args(ForeignWire)) <= ALL_WIRES


def test_the_table_alone_imports_no_wire() -> None:
    script = (
        "import sys, ganglion.wire.dialects;"
        "print([each for each in sys.modules if each.count('.') > 2 or each.endswith('tokenizer')])"
    )
    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert [each for each in ast.literal_eval(printed.stdout) if each.startswith("ganglion.wire")] == []
