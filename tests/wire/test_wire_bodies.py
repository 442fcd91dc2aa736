"""Errors, health and the OpenAPI document as clients read them."""

import json
from dataclasses import replace

import msgspec
import pytest

from ganglion.core.engine import Activation, ModelState
from ganglion.core.errors import GanglionError, InsufficientMemory, InvalidValue, Overloaded, ServerError
from ganglion.core.machine import Accelerator, Cpu, Device, DeviceReading, EngineFacts, Machine
from ganglion.wire import discovery, health, models, openai_errors, openapi
from ganglion.wire.error_format import error_headers

MODEL = ModelState(
    "tiny", "echo", "loaded", 512, 1700000000, aliases=("t",), capabilities=("chat",), in_flight=1
)


def family(kind: type[GanglionError]) -> list[type[GanglionError]]:
    return [kind, *(below for child in kind.__subclasses__() for below in family(child))]


def test_an_error_is_enveloped_with_its_hint_and_extras() -> None:
    error = InsufficientMemory("Too little.", free_mb=1, required_mb=2, hint="Free some.")
    assert json.loads(openai_errors.encode_error(error)) == {
        "error": {
            "message": "Too little. Free some.",
            "type": "server_error",
            "param": None,
            "code": "insufficient_memory",
            "free_mb": 1,
            "required_mb": 2,
        }
    }
    assert error_headers(error) == {"retry-after": "5"}
    assert error_headers(InvalidValue("x", param="n")) == {}


def test_every_503_says_when_to_retry() -> None:
    kinds = [kind for kind in family(GanglionError) if kind.status == 503]
    assert len(kinds) >= 6
    assert all(kind.retry_after_s for kind in kinds)


def test_extras_never_hide_the_named_fields() -> None:
    error = ServerError("real", extras={"message": "fake", "code": "fake"})
    assert json.loads(openai_errors.encode_error(error))["error"]["message"] == "real"


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


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        (("unloaded",), "ok"),
        (("loading",), "ok"),
        (("failed",), "degraded"),
        (("failed", "unloaded"), "degraded"),
    ],
)
def test_a_node_that_answers_by_loading_is_ready(statuses, expected) -> None:
    states = [replace(MODEL, status=status, loads_on_request=True) for status in statuses]
    assert health.node_status(states, is_draining=False) == expected
    assert health.node_status(states, is_draining=True) == "draining"


def test_health_holds_what_it_promises() -> None:
    found = json.loads(health.body([MODEL], uptime_s=1.23456, is_draining=False))
    assert found["uptime_s"] == 1.235
    assert found["models"] == [
        {"id": "tiny", "status": "loaded", "in_flight": 1, "queued": 0, "kv_used": 0, "kv_total": 0}
    ]


def test_health_shows_the_devices_and_the_engines_own_account_of_its_activation() -> None:
    account = Activation(("c",), "b", ("a",), (("d", "a bad file"),))
    reading = DeviceReading(0, "card", 70, 30, 42.0, None)
    found = json.loads(
        health.body([MODEL], uptime_s=1, is_draining=False, devices=[reading], activation=account)
    )
    assert found["devices"] == [
        {
            "index": 0,
            "name": "card",
            "memory_used_mb": 70,
            "memory_free_mb": 30,
            "utilization_pct": 42.0,
            "temperature_c": None,
        }
    ]
    assert found["activation"] == {
        "state": "pre_warming",
        "pending": ["c"],
        "in_progress": "b",
        "completed": ["a"],
        "failed": [{"model": "d", "error": "a bad file"}],
    }
    over = health.body([MODEL], uptime_s=1, is_draining=False, activation=Activation(completed=("a",)))
    assert json.loads(over)["activation"]["state"] == "ready"


def test_discovery_names_what_is_wrong_and_nothing_when_all_is_well() -> None:
    machine = Machine(
        hostname="node-1",
        os="Debian",
        kernel="6.1",
        cpu=Cpu("A Processor", "x86_64", 8, ("avx2",)),
        memory_total_mb=1024,
        devices=(Device(0, "H200", 143771, "9.0"),),
        engines=(EngineFacts("llama", "2026.1", "bundled", None, ("devices",)),),
        accelerator=Accelerator("CUDA 12.8", "570"),
    )
    found = json.loads(discovery.body(machine, version="1.2", max_context=4096))
    assert found == {
        "hostname": "node-1",
        "os": "Debian",
        "kernel": "6.1",
        "cpu": {"model": "A Processor", "architecture": "x86_64", "cores": 8, "flags": ["avx2"]},
        "memory_total_mb": 1024,
        "devices": [
            {"index": 0, "name": "H200", "memory_total_mb": 143771, "compute_capability": "9.0"},
        ],
        "accelerator": {"runtime": "CUDA 12.8", "driver": "570"},
        "engines": [
            {
                "name": "llama",
                "version": "2026.1",
                "library": "bundled",
                "accelerators": None,
                "layout": ["devices"],
            }
        ],
        "version": "1.2",
        "max_context": 4096,
        "grpc": None,
    }
    broken = replace(machine, accelerator=None, accelerator_unusable="No driver.")
    told = json.loads(discovery.body(broken, version="1.2", max_context=None))
    assert (told["accelerator"], told["accelerator_unusable"]) == (None, "No driver.")


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
    pairs = [(operation.method, operation.path) for operation in openapi.OPERATIONS]
    assert len(set(pairs)) == len(pairs)


def test_overload_is_not_a_rate_limit() -> None:
    assert Overloaded.status == 503
