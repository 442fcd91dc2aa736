"""Who is let in over gRPC: every method of every service, whatever its streams."""

import contextlib
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass
from grpc_calls import SALIENCE, caller_of, connected, stream_of
from grpc_health.v1 import health_pb2

from ganglion.server.bind import InsecureBind
from ganglion.server.gate import Gate
from ganglion.server.grpc.caller import PUBLIC_SERVICES
from ganglion.server.grpc.handlers import UNGATED_METHODS, gated_behaviours
from ganglion.server.grpc.listener import HEALTH, REFLECTION
from ganglion.server.grpc.salience_service import SalienceService
from ganglion.wire.salience import salience_pb2 as pb
from ganglion.wire.salience.error_metadata import CODE
from ganglion.wire.salience.service import SERVICE

SERVICES = (SALIENCE, HEALTH, REFLECTION)


def methods() -> Iterator[tuple[ServiceDescriptor, MethodDescriptor]]:
    for service in SERVICES:
        for method in service.methods:
            yield service, method


def test_the_public_list_is_the_health_service_alone() -> None:
    assert frozenset({"grpc.health.v1.Health"}) == PUBLIC_SERVICES
    assert HEALTH.full_name in PUBLIC_SERVICES


def test_every_method_of_the_proto_has_a_handler_and_every_handler_a_method() -> None:
    service = SalienceService(None, None, tuple, max_text_bytes=1)
    assert set(service.methods) == {method.name for method in SERVICE.methods}
    assert set(gated_behaviours(service.methods, Gate(1), lambda method, context: None)) == set(
        service.methods
    )
    assert set(service.methods) > UNGATED_METHODS
    del service.methods["Generate"]
    with pytest.raises(KeyError):
        gated_behaviours(service.methods, Gate(1), lambda method, context: None)


async def status_of(channel: grpc.aio.Channel, method: MethodDescriptor, key: str | None) -> grpc.StatusCode:
    """How a call with an empty message ends; one that stays open is left.

    gRPC's own client says INTERNAL where a message of a stream meets a call that has just ended, without the
    code that every status of ours carries: such a call is made again.
    """
    for _ in range(5):
        call = _call(channel, method, key)
        with contextlib.suppress(grpc.aio.AioRpcError):
            if method.server_streaming:
                async for _ in call:
                    call.cancel()
                    return grpc.StatusCode.OK
            else:
                await call
        code = await call.code()
        names = {name for name, _ in await call.trailing_metadata() or ()}
        if code is not grpc.StatusCode.INTERNAL or not method.client_streaming or CODE in names:
            return code
    return code


def _call(channel: grpc.aio.Channel, method: MethodDescriptor, key: str | None) -> Any:
    message = GetMessageClass(method.input_type)()
    request = stream_of([message]) if method.client_streaming else message
    metadata = () if key is None else (("authorization", f"Bearer {key}"),)
    return caller_of(channel, method)(request, metadata=metadata, timeout=10)


async def test_everything_but_the_public_list_needs_a_key(serving, capsys) -> None:
    denied = 0
    unauthenticated = grpc.StatusCode.UNAUTHENTICATED
    async with serving(api_keys=("secret-1", "secret-2")) as served, connected(served.rpc) as rpc:
        for service, method in methods():
            bare = await status_of(rpc.channel, method, None)
            if service.full_name in PUBLIC_SERVICES:
                assert bare is grpc.StatusCode.OK, method.full_name
                continue
            assert bare is unauthenticated, method.full_name
            assert await status_of(rpc.channel, method, "secret-3") is unauthenticated
            for key in ("secret-1", "secret-2"):
                assert await status_of(rpc.channel, method, key) not in (
                    unauthenticated,
                    grpc.StatusCode.UNKNOWN,
                    grpc.StatusCode.INTERNAL,
                )
            denied += 1
        for path in (
            "/nowhere/Method",
            "/salience.v1.Salience/Nothing",
            "/grpc.health.v1.HealthX/Check",
            "/",
        ):
            for make in (rpc.channel.unary_unary, rpc.channel.stream_unary):
                request = b"" if make == rpc.channel.unary_unary else stream_of([b""])
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await make(path)(request)
                assert refused.value.code() is unauthenticated, path
        with pytest.raises(grpc.aio.AioRpcError) as unknown:
            await rpc.channel.unary_unary("/nowhere/Method")(
                b"", metadata=(("authorization", "Bearer secret-1"),)
            )
        assert unknown.value.code() is grpc.StatusCode.UNIMPLEMENTED
    total = len(list(methods()))
    assert (total, denied) == (len(SALIENCE.methods) + 4, len(SALIENCE.methods) + 1)
    with capsys.disabled():
        print(
            f"\nrpc access matrix: {total} methods of {len(SERVICES)} services, {denied} denied without a key"
        )


async def test_a_call_without_a_key_is_denied_before_it_has_sent_its_message(serving) -> None:
    async with serving(api_keys=("secret",)) as served, connected(served.rpc) as rpc:
        call = rpc.channel.stream_stream("/salience.v1.Salience/Generate")(timeout=5)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call.read()
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize(
    "metadata",
    [
        (("authorization", "secret"),),
        (("authorization", "Basic secret"),),
        (("authorization", "Bearer "),),
        (("authorization", "Bearer SECRET"),),
        (("authorization", "Bearer secret2"),),
        (("x-api-key", "secret"),),
        (("authorization-bin", b"Bearer secret"),),
    ],
)
async def test_a_made_up_credential_is_refused(serving, metadata) -> None:
    async with serving(api_keys=("secret",)) as served, connected(served.rpc) as rpc:
        listing = caller_of(rpc.channel, SALIENCE.methods_by_name["ListSessions"])
        message = GetMessageClass(SALIENCE.methods_by_name["ListSessions"].input_type)()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await listing(message, metadata=metadata)
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert await listing(message, metadata=(("authorization", "bearer  secret "),))


async def test_another_tenants_session_is_one_that_does_not_exist(serving) -> None:
    async with (
        serving(api_keys=("one", "two")) as served,
        connected(served.rpc, "one") as one,
        connected(served.rpc, "two") as two,
    ):
        session_id = await one.opened()
        assert len((await one.call("ListSessions", pb.ListSessionsRequest())).sessions) == 1
        assert len((await two.call("ListSessions", pb.ListSessionsRequest())).sessions) == 0
        foreign = await two.refusal("GetTokens", pb.GetTokensRequest(session_id=session_id))
        assert foreign.code() is grpc.StatusCode.NOT_FOUND
        foreign = await two.refusal("CloseSession", pb.CloseSessionRequest(session_id=session_id))
        unknown = await two.refusal("CloseSession", pb.CloseSessionRequest(session_id="s" * len(session_id)))
        assert foreign.code() is unknown.code() is grpc.StatusCode.NOT_FOUND
        assert foreign.details().replace(session_id, "") == unknown.details().replace(
            "s" * len(session_id), ""
        )


async def test_a_bind_that_others_reach_needs_a_key_for_grpc_too(serving) -> None:
    with pytest.raises(InsecureBind):
        async with serving(host="0.0.0.0"):
            pass


async def test_health_answers_anybody(serving) -> None:
    async with serving(api_keys=("secret",)) as served, connected(served.rpc) as rpc:
        check = caller_of(rpc.channel, HEALTH.methods_by_name["Check"])
        for name in ("", "salience.v1.Salience"):
            answer = await check(health_pb2.HealthCheckRequest(service=name))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.aio.AioRpcError) as unknown:
            await check(health_pb2.HealthCheckRequest(service="nobody"))
        assert unknown.value.code() is grpc.StatusCode.NOT_FOUND
