"""The server against its own OpenAPI document: nothing breaks, and every answer is a documented one."""

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from openai.types import completion_create_params as completion_params
from openai.types.chat import completion_create_params as chat_params
from openai.types.responses import response_create_params as responses_params
from pydantic import TypeAdapter
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from ganglion.engines.echo.engine import EchoEngine
from ganglion.registry.loading.candidate import Candidate, build_without_options
from ganglion.registry.loading.residency import Residency
from ganglion.server.life.serve import Shutdown, serve
from ganglion.server.life.storage import StoreTarget
from ganglion.server.settings import ServerSettings
from ganglion.wire.route_aliases import canonical_path

CHECKS = (
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
)
FEW, MANY, PUBLIC = 6, 12, 80


@pytest.fixture
def url() -> Iterator[str]:
    """A server on a thread of its own, since the fuzzer blocks the test's."""
    listening = threading.Event()
    found: list[str] = []
    loops: list[tuple[asyncio.AbstractEventLoop, Shutdown]] = []

    def on_listening(at: str) -> None:
        found.append(at)
        listening.set()

    async def live() -> None:
        shutdown = Shutdown()
        loops.append((asyncio.get_running_loop(), shutdown))
        engine = Residency([Candidate("echo", build_without_options(EchoEngine))], free_bytes=lambda: 0)
        await serve(
            engine,
            ServerSettings(port=0),
            shutdown=shutdown,
            on_listening=on_listening,
            storage=StoreTarget(":memory:"),
        )

    thread = threading.Thread(target=lambda: asyncio.run(live()))
    thread.start()
    assert listening.wait(10)
    yield found[0]
    loop, shutdown = loops[0]
    loop.call_soon_threadsafe(shutdown.ask)
    thread.join(10)
    assert not thread.is_alive()


def fuzz(operation: schemathesis.APIOperation, mode: GenerationMode, seen: Counter[int]) -> None:
    """Send cases of one operation that fit its schema, or that violate it."""
    has_body, has_path = bool(operation.body), bool(operation.path_parameters)

    @settings(
        max_examples=MANY if has_body else FEW if has_path else 1,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def drive(case: schemathesis.Case) -> None:
        if has_body and mode is GenerationMode.POSITIVE:
            case.body["model"] = "echo"  # a made-up name would only ever find that it is one
        response = case.call()
        # A body that violates a maximum can be refused for its size before anybody reads it.
        more = () if response.status_code == 413 else (negative_data_rejection,)
        case.validate_response(response, checks=(*CHECKS, *more))
        seen[response.status_code] += 1

    drive()


def public_document(url: str) -> dict[str, object]:
    """OpenAI's own description of three routes, as the types of its SDK have it."""
    bodies = {
        "/v1/chat/completions": chat_params.CompletionCreateParamsNonStreaming,
        "/v1/responses": responses_params.ResponseCreateParamsNonStreaming,
        "/v1/completions": completion_params.CompletionCreateParamsNonStreaming,
    }
    shapes: dict[str, object] = {}
    paths: dict[str, object] = {}
    for path, params in bodies.items():
        schema = TypeAdapter(params).json_schema(ref_template="#/components/schemas/{model}")
        shapes |= schema.pop("$defs", {})
        content = {"application/json": {"schema": schema}}
        paths[path] = {
            "post": {"requestBody": {"required": True, "content": content}, "responses": {"200": {}}}
        }
    return {
        "openapi": "3.1.0",
        "info": {"title": "OpenAI", "version": "1"},
        "servers": [{"url": url}],
        "paths": paths,
        "components": {"schemas": shapes},
    }


def test_no_case_of_the_public_document_breaks_the_server(url: str) -> None:
    schema = schemathesis.openapi.from_dict(public_document(url))
    schema.config.update(base_url=url)
    seen: Counter[int] = Counter()
    for result in schema.get_all_operations():
        operation = result.ok()

        @settings(
            max_examples=PUBLIC,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=GenerationMode.POSITIVE))
        def drive(case: schemathesis.Case) -> None:
            case.body["model"] = "echo"
            response = case.call()
            case.validate_response(response, checks=(not_a_server_error,))
            seen[response.status_code] += 1

        drive()
    print(f"public schema cases: {sum(seen.values())}, by status: {dict(seen)}")
    assert sum(seen.values()) > 200


@pytest.mark.timeout(300)
def test_no_case_of_the_document_breaks_the_server(url: str) -> None:
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    seen: Counter[int] = Counter()
    for result in schema.get_all_operations():
        operation = result.ok()
        if canonical_path(operation.path) != operation.path:
            continue  # another name of a route that is tried already
        fuzz(operation, GenerationMode.POSITIVE, seen)
        if operation.body:
            fuzz(operation, GenerationMode.NEGATIVE, seen)
    print(f"schema cases: {sum(seen.values())}, by status: {dict(seen)}")
    assert sum(seen.values()) > 200
    assert seen[200] > 50
    assert seen[400] > 50
