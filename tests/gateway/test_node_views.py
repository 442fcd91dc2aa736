"""What nodes say, as the fleet keeps it: sensible, bounded, or refused."""

import json

import pytest
from reporting_node import model, state

from ganglion.core.errors import GanglionError, InvalidRequest
from ganglion.gateway.fleet.node_views import (
    MAX_DIGEST,
    MAX_MODELS,
    grpc_of,
    listed_view,
    overview_view,
    parse_grpc,
    polled_view,
    state_view,
)
from ganglion.gateway.node import DeviceMemory, NodeSpec, Replica
from ganglion.wire.fleet import ReplicaState, parse_state
from ganglion.wire.fleet_overview import NodeDevice, NodeOverview
from ganglion.wire.health import DeviceHealth
from ganglion.wire.upstream.polling import (
    ListedModel,
    PolledGrpc,
    parse_discovery,
    parse_health,
    parse_model_list,
    parse_models,
)

SPEC = NodeSpec("a", "http://10.0.0.7:8080")


def test_a_state_becomes_a_view() -> None:
    told = state(
        3,
        model(
            "m", aliases=("big",), in_flight=2, queued=1, slots_total=4, context_length=8192, memory_mb=700
        ),
        model("n", "loading", pinned=True, priority=2, error="why"),
        devices=(DeviceHealth(0, "A GPU", 1000, 3000, None, None),),
        digest=("x", "y"),
        engines={"vllm": ("devices",) * 100, "llama": (), "e" * 1000: ("x",)}
        | {f"e{number}": () for number in range(99)},
    )
    view = state_view(SPEC, told, 5.0)
    assert (view.engines["vllm"], view.engines["llama"], len(view.engines)) == ({"devices"}, set(), 64)
    assert view.is_healthy and not view.is_draining and view.takes_work
    assert view.replicas == (
        Replica(
            "m",
            "loaded",
            aliases=("big",),
            in_flight=2,
            queued=1,
            slots_total=4,
            context_length=8192,
            memory_mb=700,
        ),
        Replica("n", "loading", is_pinned=True, priority=2, error="why"),
    )
    assert [replica.is_servable for replica in view.replicas] == [True, False]
    assert view.devices == (DeviceMemory(0, "A GPU", 4000, 3000),)
    assert (view.digest, view.boot, view.last_heard_s) == ({"x", "y"}, "one", 5.0)


def test_a_draining_node_is_there_and_takes_no_work() -> None:
    view = state_view(SPEC, state(1, model(), status="draining"), 0.0)
    assert view.is_healthy and view.is_draining and not view.takes_work


def test_only_the_latest_of_a_long_digest_is_kept_and_numbers_stay_in_their_bounds() -> None:
    told = state(1, model(in_flight=-5, memory_mb=2**60), digest=tuple(str(n) for n in range(5000)))
    view = state_view(SPEC, told, 0.0)
    assert len(view.digest) == MAX_DIGEST and "4999" in view.digest and "0" not in view.digest
    assert (view.replicas[0].in_flight, view.replicas[0].memory_mb) == (0, 2**53)
    many = model(aliases=tuple(f"alias-{n}" for n in range(1000)), error="e" * 10**6)
    [replica] = state_view(SPEC, state(1, many), 0.0).replicas
    assert len(replica.aliases) == 64 and len(replica.error or "") == 1000


def test_more_models_or_longer_names_than_anybody_has_are_refused() -> None:
    for told in (
        state(1, *(model(str(n)) for n in range(MAX_MODELS + 1))),
        state(1, model("m" * 600)),
        state(1, boot="b" * 600),
    ):
        with pytest.raises(InvalidRequest):
            state_view(SPEC, told, 0.0)
    with pytest.raises(InvalidRequest):
        listed_view(
            SPEC, parse_model_list(json.dumps({"data": [{"id": str(n)} for n in range(5000)]}).encode()), 0.0
        )


def test_models_and_health_of_an_older_node_become_one_view() -> None:
    models = parse_models(
        b'[{"id":"m","engine":"llama","status":"loaded","devices":["cpu"],"memory_mb":5,"context_length":99,'
        b'"capabilities":["chat"],"pinned":true,"last_used":1.5,"aliases":["a"],"priority":1,"source":"x"},'
        b'{"id":"n","status":"failed","error":"no"}]'
    )
    health = parse_health(
        b'{"status":"draining","uptime_s":3.5,"devices":[{"index":-1,"name":"cpu","memory_used_mb":1,'
        b'"memory_free_mb":2,"utilization_pct":null,"temperature_c":null}],"activation":{},'
        b'"models":[{"id":"m","status":"loaded","in_flight":3,"queued":4,"kv_used":0,"kv_total":1}]}'
    )
    view = polled_view(SPEC, models, health, 1.0)
    first, second = view.replicas
    assert (first.in_flight, first.queued, first.is_pinned, first.last_used_s) == (3, 4, True, 1.5)
    assert (first.engine, first.aliases, first.context_length) == ("llama", ("a",), 99)
    assert (second.status, second.error, second.is_servable) == ("failed", "no", False)
    assert view.is_draining and view.devices == (DeviceMemory(-1, "cpu", 3, 2),)
    assert not polled_view(SPEC, models, None, 1.0).is_draining


@pytest.mark.parametrize(
    ("entry", "context_length", "aliases"),
    [
        ({"id": "m", "object": "model", "created": 5, "owned_by": "x"}, 0, ()),
        ({"id": "m", "max_model_len": 4096}, 4096, ()),
        ({"id": "m", "context_length": 131072}, 131072, ()),
        ({"id": "m", "meta": {"n_ctx_train": 32768, "n_params": 5}}, 32768, ()),
        ({"id": "m", "meta": {"n_ctx": 2048, "n_ctx_train": 32768}}, 2048, ()),
        ({"id": "m", "aliases": ["a", "b", 5, ""]}, 0, ("a", "b")),
        ({"id": "m", "aliases": "a", "meta": [1], "max_model_len": "many", "context_length": -5}, 0, ()),
        ({"id": "m", "max_model_len": True, "context_window": 7}, 7, ()),
        ({"id": "m", "max_model_len": 2**40, "created": {}}, 0, ()),
    ],
)
def test_a_foreign_list_counts_as_loaded_and_says_how_long_a_context_may_be(
    entry: dict[str, object], context_length: int, aliases: tuple[str, ...]
) -> None:
    view = listed_view(SPEC, parse_model_list(json.dumps({"object": "list", "data": [entry]}).encode()), 0.0)
    [replica] = view.replicas
    assert (replica.id, replica.is_servable, replica.context_length) == ("m", True, context_length)
    assert replica.aliases == aliases


def test_an_empty_foreign_list_is_a_list_and_a_model_named_twice_is_one() -> None:
    assert parse_model_list(b'{"object":"list","data":null}') == parse_model_list(b'{"data":[]}') == ()
    view = listed_view(SPEC, parse_model_list(b'{"data":[{"id":"m"},{"id":"m"}]}'), 0.0)
    assert [replica.id for replica in view.replicas] == ["m"]


NONSENSE = [
    *(
        b"",
        b"{",
        b"null",
        b"[]",
        b"{}",
        b"5",
        b'"x"',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"error": {"message": "no"}}',
    ),
    *(
        b'{"data": 5}',
        b'{"data": [5]}',
        b'{"data": [{}]}',
        b'{"data": [{"id": 5}]}',
        b'{"data": [{"id": ""}]}',
    ),
    *(b'{"boot": 5, "version": 1, "status": "ok"}', b'{"boot": "b", "version": 1, "status": "splendid"}'),
    *(
        b'[{"id": 5}]',
        b'[{"id": "m", "status": "great"}]',
        b'[{"id": "m", "status": "loaded", "aliases": [5]}]',
    ),
]


@pytest.mark.parametrize("body", NONSENSE)
@pytest.mark.parametrize("parse", [parse_state, parse_model_list])
def test_nonsense_is_told_as_an_error_of_ours(body: bytes, parse) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(GanglionError):
        parse(body)


@pytest.mark.parametrize("body", [body for body in NONSENSE if body != b"[]"])
def test_nonsense_is_no_list_of_models_either(body: bytes) -> None:
    with pytest.raises(GanglionError):
        parse_models(body)


@pytest.mark.parametrize(
    ("url", "host", "grpc"),
    [
        ("http://10.0.0.7:8080", "0.0.0.0", "10.0.0.7:50051"),
        ("http://10.0.0.7:8080", "::", "10.0.0.7:50051"),
        ("http://10.0.0.7:8080", "127.0.0.1", "10.0.0.7:50051"),
        ("http://10.0.0.7:8080", "localhost", "10.0.0.7:50051"),
        ("http://10.0.0.7:8080", "", "10.0.0.7:50051"),
        ("http://10.0.0.7:8080", "10.0.0.8", "10.0.0.8:50051"),
        ("http://gpu1", "gpu1.lan", "gpu1.lan:50051"),
        ("http://127.0.0.1:8080", "127.0.0.1", "127.0.0.1:50051"),
        ("http://[fd00::1]:8080", "::1", "[fd00::1]:50051"),
    ],
)
def test_sessions_are_where_the_gateway_reaches_them(url: str, host: str, grpc: str) -> None:
    assert grpc_of(NodeSpec("a", url), PolledGrpc(host, 50051)) == grpc


def test_no_sessions_and_impossible_ports_are_none() -> None:
    assert grpc_of(SPEC, None) is None
    assert grpc_of(SPEC, PolledGrpc("x", 0)) is None
    assert grpc_of(SPEC, PolledGrpc("x", 70000)) is None
    assert parse_discovery(b'{"version":"1","grpc":null,"hostname":"x"}').grpc is None
    assert parse_grpc("[::1]:5") == PolledGrpc("::1", 5)
    for text in ("", "x", "x:", ":5", "x:0", "x:70000", "x:-1", "x:\u0665", "x:5 5"):
        with pytest.raises(InvalidRequest):
            parse_grpc(text)


def test_of_a_strangers_models_only_the_declared_ones_are_listed() -> None:
    listed = (ListedModel("big"), ListedModel("small"))
    spec = NodeSpec("cloud", "https://api.c", "openai", models=frozenset({"big", "gone"}))
    assert [replica.id for replica in listed_view(spec, listed, 1.0).replicas] == ["big"]


def test_a_node_is_read_as_a_gateway_tells_of_it() -> None:
    told = NodeOverview(
        name="a",
        url="http://a:1",
        kind="ganglion",
        healthy=True,
        draining=True,
        cooling=False,
        in_flight=1,
        heard_s_ago=0.1,
        error="x" * 5000,
        version="1",
        grpc=None,
        epoch=None,
        devices=(NodeDevice(0, "card", 6000, 5000),) * 1000,
        models=(ReplicaState(id="m", status="loaded", in_flight=-1),),
        engines={"vllm": ("devices",)},
    )
    view = overview_view(told)
    assert view.engines == {"vllm": {"devices"}}
    assert (view.name, view.is_healthy, view.is_draining) == ("a", True, True)
    assert (view.devices[0].total_mb, view.devices[0].free_mb, len(view.devices)) == (6000, 5000, 256)
    assert (view.replicas[0].id, view.replicas[0].in_flight) == ("m", 0)
    assert len(view.error or "") == 1000
