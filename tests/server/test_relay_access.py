"""Who is let in at a gateway's gRPC door, and whose sessions they find there."""

from dataclasses import replace

import grpc
import pytest
from grpc_calls import SALIENCE, caller_of, connected, trailers
from grpc_health.v1 import health_pb2
from relaying import Keys, relaying, view_of
from test_grpc_access import methods, status_of

from ganglion.core.errors import SessionNotFound
from ganglion.gateway.access.admission import Identity
from ganglion.server.gateway.relay.session_handles import SessionHandles, SessionLocation
from ganglion.server.grpc.caller import PUBLIC_SERVICES
from ganglion.server.grpc.listener import HEALTH
from ganglion.sessions.settings import SessionSettings
from ganglion.wire.salience import salience_pb2 as pb
from support.rights_table import rows

Code = grpc.StatusCode


def two() -> Keys:
    return Keys({"one": Identity("t1", "k1"), "two": Identity("t2", "k2"), "too": Identity("t2", "k3")})


async def test_everything_but_the_public_list_needs_a_key_also_at_the_gateway(serving, tmp_path) -> None:
    denied = 0
    async with (
        serving(sessions=SessionSettings(folder=tmp_path)) as served,
        relaying([view_of("a", served.rpc, "echo")], two()) as relayed,
        connected(relayed.address) as rpc,
    ):
        for service, method in methods():
            bare = await status_of(rpc.channel, method, None)
            if service.full_name in PUBLIC_SERVICES:
                assert bare is Code.OK, method.full_name
                continue
            assert bare is Code.UNAUTHENTICATED, method.full_name
            assert await status_of(rpc.channel, method, "three") is Code.UNAUTHENTICATED
            known = await status_of(rpc.channel, method, "one")
            assert known not in (Code.UNAUTHENTICATED, Code.UNKNOWN, Code.INTERNAL), method.full_name
            denied += 1
        for path in ("/nowhere/Method", "/salience.v1.Salience/Nothing", "/"):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await rpc.channel.unary_unary(path)(b"")
            assert refused.value.code() is Code.UNAUTHENTICATED, path
            assert trailers(refused.value)["ganglion-code"] == "invalid_api_key"
    assert denied == len(SALIENCE.methods) + 1


async def test_every_call_takes_the_right_that_the_table_says_also_at_the_gateway(serving, tmp_path) -> None:
    keys = Keys({role: Identity(role, role, role) for role in ("user", "node", "admin")})
    async with (
        serving(sessions=SessionSettings(folder=tmp_path)) as served,
        relaying([view_of("a", served.rpc, "echo")], keys) as relayed,
        connected(relayed.address) as rpc,
    ):
        for row in rows("gateway"):
            for role in ("user", "node", "admin") if row.method == "GRPC" else ():
                code = await status_of(rpc.channel, SALIENCE.methods_by_name[row.path], role)
                is_refused = code in (Code.UNAUTHENTICATED, Code.PERMISSION_DENIED)
                assert is_refused == (role not in ("admin", row.right)), (row, role, code)


async def test_a_call_keeps_the_name_that_it_brings(serving) -> None:
    async with (
        serving() as served,
        relaying([view_of("a", served.rpc, "echo")]) as relayed,
        connected(relayed.address) as rpc,
    ):
        call = rpc.begin("ListSessions", pb.ListSessionsRequest(), (("x-request-id", "mine-7"),))
        await call
        assert dict(await call.trailing_metadata())["x-request-id"] == "mine-7"


async def test_two_tenants_on_a_node_that_knows_neither_do_not_find_each_others_sessions(serving) -> None:
    async with serving() as served, relaying([view_of("a", served.rpc, "echo")], two()) as relayed:
        async with (
            connected(relayed.address, "one") as one,
            connected(relayed.address, "two") as two_,
            connected(relayed.address, "too") as too,
        ):
            theirs, ours = await one.opened(), await two_.opened()
            for method, request in (
                ("Generate", pb.GenerateRequest(session_id=theirs)),
                ("ForkSession", pb.ForkSessionRequest(session_id=theirs)),
                ("SaveSession", pb.SaveSessionRequest(session_id=theirs)),
                ("CloseSession", pb.CloseSessionRequest(session_id=theirs)),
            ):
                refused = await two_.refusal(method, request)
                assert refused.code() is Code.NOT_FOUND
                assert refused.details() == SessionNotFound(theirs).message
                assert trailers(refused)["ganglion-code"] == "session_not_found"
            stolen = f"{theirs.rpartition('~')[0]}~{ours.rpartition('~')[2]}"
            assert (await two_.refusal("CloseSession", pb.CloseSessionRequest(session_id=stolen))).code() is (
                Code.NOT_FOUND
            )
            for rpc, expected in ((one, theirs), (two_, ours), (too, ours)):
                listed = (await rpc.call("ListSessions", pb.ListSessionsRequest())).sessions
                assert [info.session_id for info in listed] == [expected]
        # Another gateway never heard whose they are: it shows none rather than all.
        async with (
            relaying([view_of("a", served.rpc, "echo")], two()) as another,
            connected(another.address, "one") as one,
        ):
            assert not (await one.call("ListSessions", pb.ListSessionsRequest())).sessions
            await one.generate(theirs, append_tokens=[1])
            listed = (await one.call("ListSessions", pb.ListSessionsRequest())).sessions
            assert [info.session_id for info in listed] == [theirs]


async def test_a_node_that_knows_the_gateways_tenants_is_listed_by_any_gateway(serving) -> None:
    node_key = {"api_key": "of-the-gateway"}
    async with (
        serving(gateway_keys=("of-the-gateway",)) as served,
        relaying([view_of("a", served.rpc, "echo", **node_key)], two()) as relayed,
    ):
        async with connected(relayed.address, "one") as one, connected(relayed.address, "two") as other:
            theirs, ours = await one.opened(), await other.opened()
        async with (
            relaying([view_of("a", served.rpc, "echo", **node_key)], two()) as another,
            connected(another.address, "one") as one,
            connected(another.address, "too") as too,
        ):
            for rpc, expected in ((one, theirs), (too, ours)):
                listed = (await rpc.call("ListSessions", pb.ListSessionsRequest())).sessions
                assert [info.session_id for info in listed] == [expected]
            claims = (("x-ganglion-tenant", "t2"), ("x-ganglion-key", "k2"))
            listed = (await one.begin("ListSessions", pb.ListSessionsRequest(), claims)).sessions
            assert [info.session_id for info in listed] == [theirs]


async def test_nodes_with_a_certificate_are_called_with_tls_and_others_are_not_believed(
    serving, certificate
) -> None:
    path, key = certificate
    async with serving(tls_cert=str(path), tls_key=str(key)) as served:
        node = view_of("a", served.rpc, "echo")
        secured = replace(node, spec=replace(node.spec, url=node.spec.url.replace("http:", "https:")))
        for view, authorities, is_reached in (
            (secured, path.read_bytes(), True),
            (secured, None, False),
            (node, None, False),
        ):
            async with (
                relaying([view], authorities=authorities) as relayed,
                connected(relayed.address) as rpc,
            ):
                if is_reached:
                    assert await rpc.opened()
                else:
                    refused = await rpc.refusal("OpenSession", pb.OpenSessionRequest(model="echo"))
                    assert trailers(refused)["ganglion-code"] == "upstream_unavailable"


async def test_the_door_is_serving_while_some_node_takes_work(serving) -> None:
    async with (
        serving() as served,
        relaying([view_of("a", served.rpc, "echo")], two()) as relayed,
        connected(relayed.address) as rpc,
    ):
        check = caller_of(rpc.channel, HEALTH.methods_by_name["Check"])
        kinds = health_pb2.HealthCheckResponse
        assert (await check(health_pb2.HealthCheckRequest())).status == kinds.SERVING
        relayed.fleet.put(replace(relayed.fleet.nodes["a"], is_draining=True))
        assert (await check(health_pb2.HealthCheckRequest())).status == kinds.NOT_SERVING


@pytest.mark.parametrize(
    "handle", ["", "~", "~~", "a", "a~", "a~b", "a~b~", "a~b~0000", "a~b~" + "é" * 16, "a~\ud800~x", "~b~c"]
)
def test_what_is_no_handle_is_no_session(handle: str) -> None:
    with pytest.raises(SessionNotFound):
        SessionHandles(b"secret").read("t", handle)


def test_a_handle_holds_for_its_tenant_node_id_and_secret_alone() -> None:
    place = SessionLocation("node-1", "sess_a~b")
    handle = SessionHandles(b"secret").write("t", place)
    assert SessionHandles(b"secret").read("t", handle) == place
    for tenant, secret, other in (
        ("u", b"secret", handle),
        ("t", b"other", handle),
        ("t", b"secret", handle.replace("node-1", "node-2")),
        ("t", b"secret", handle.replace("sess_a", "sess_b")),
    ):
        with pytest.raises(SessionNotFound):
            SessionHandles(secret).read(tenant, other)
