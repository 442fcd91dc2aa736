"""Errors, health and the OpenAPI document as clients read them."""

import json
from dataclasses import replace

import msgspec
import pytest

from ganglion.core.engine import ModelState
from ganglion.core.errors import GanglionError, InsufficientMemory, InvalidValue, Overloaded, ServerError
from ganglion.wire import errors, health, models, openapi

MODEL = ModelState(
    "tiny", "echo", "loaded", 512, 1700000000, aliases=("t",), capabilities=("chat",), in_flight=1
)


def family(kind: type[GanglionError]) -> list[type[GanglionError]]:
    return [kind, *(below for child in kind.__subclasses__() for below in family(child))]


def test_an_error_is_enveloped_with_its_hint_and_extras() -> None:
    error = InsufficientMemory("Too little.", free_mb=1, required_mb=2, hint="Free some.")
    assert json.loads(errors.envelope(error)) == {
        "error": {
            "message": "Too little. Free some.",
            "type": "server_error",
            "param": None,
            "code": "insufficient_memory",
            "free_mb": 1,
            "required_mb": 2,
        }
    }
    assert errors.headers(error) == {"retry-after": "5"}
    assert errors.headers(InvalidValue("x", param="n")) == {}


def test_every_503_says_when_to_retry() -> None:
    kinds = [kind for kind in family(GanglionError) if kind.status == 503]
    assert len(kinds) >= 6
    assert all(kind.retry_after_s for kind in kinds)


def test_extras_never_hide_the_named_fields() -> None:
    error = ServerError("real", extras={"message": "fake", "code": "fake"})
    assert json.loads(errors.envelope(error))["error"]["message"] == "real"


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ((), ("ready", [], None, [], [])),
        (("loaded", "recovering", "draining"), ("ready", [], None, ["m0", "m1", "m2"], [])),
        (("loading", "downloading", "unloaded"), ("pre_warming", ["m1", "m2"], "m0", [], [])),
        (("failed", "loaded"), ("ready", [], None, ["m1"], ["m0"])),
    ],
)
def test_every_model_stands_in_one_activation_list(statuses, expected) -> None:
    states = [replace(MODEL, id=f"m{place}", status=status) for place, status in enumerate(statuses)]
    found = health.derived_activation(states)
    failed = [failure.model for failure in found.failed]
    assert (found.state, found.pending, found.in_progress, found.completed, failed) == expected


@pytest.mark.parametrize(
    ("statuses", "is_draining", "expected"),
    [
        (("loaded",), True, "draining"),
        (("loading",), False, "loading"),
        (("failed", "loading"), False, "loading"),
        (("failed", "failed"), False, "failed"),
        ((), False, "loading"),
        (("loaded", "failed"), False, "degraded"),
        (("loaded", "unloaded"), False, "ok"),
    ],
)
def test_the_node_in_one_word(statuses, is_draining, expected) -> None:
    states = [replace(MODEL, status=status) for status in statuses]
    assert health.node_status(states, is_draining=is_draining) == expected


def test_health_holds_what_it_promises() -> None:
    found = json.loads(health.body([MODEL], uptime_s=1.23456, is_draining=False))
    assert found["uptime_s"] == 1.235
    assert found["models"] == [
        {"id": "tiny", "status": "loaded", "in_flight": 1, "queued": 0, "kv_used": 0, "kv_total": 0}
    ]


def test_a_model_card_says_what_the_model_can_do() -> None:
    (card,) = json.loads(models.every([MODEL]))["data"]
    assert card == json.loads(models.one(MODEL))
    assert (card["id"], card["context_length"], card["capabilities"], card["status"]) == (
        "tiny",
        512,
        ["chat"],
        "loaded",
    )


def test_the_document_refers_only_to_what_it_holds() -> None:
    document = openapi.document("1.2.3")
    text = openapi.encode(document).decode()
    assert document["openapi"] == "3.1.0"
    names = set(msgspec.json.decode(text)["components"]["schemas"])
    referred = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert referred <= names
    assert len({operation.path for operation in openapi.OPERATIONS}) == len(openapi.OPERATIONS)


def test_overload_is_not_a_rate_limit() -> None:
    assert Overloaded.status == 503
