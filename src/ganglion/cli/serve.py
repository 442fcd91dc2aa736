"""`ganglion serve`: models behind HTTP, until a signal ends it."""

import asyncio
import os
import shlex
import socket
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol

from cyclopts import Parameter
from msgspec import structs

from ganglion import __version__
from ganglion.cli.flags import (
    ENGINE_UNSET,
    HOLDING,
    JOINING,
    MODEL,
    OUTPUT_UNSET,
    SECURITY,
    SERVER,
    EngineFlags,
    FlagGroup,
    OutputFlags,
    flag,
    flag_group,
    load_config,
    with_config_file,
)
from ganglion.cli.terminal.console import say, say_error
from ganglion.cli.terminal.logs import set_up_logging
from ganglion.cli.terminal.progress import download_bar, show_downloads
from ganglion.config import Config
from ganglion.core.home import home_folder
from ganglion.engines.table import ENGINES
from ganglion.server.settings import BuildInfo
from ganglion.store.settings import StoreSettings

if TYPE_CHECKING:
    from ganglion.core.engine import ManagedEngine
    from ganglion.server.life.storage import StoreTarget


class _ServeFunction(Protocol):
    """What serves a socket until it is told to end, over an engine that is being opened."""

    async def __call__(self, *, opening: asyncio.Task[None], listener: socket.socket) -> None: ...


@flag_group(SERVER)
class ServerFlags(FlagGroup):
    """Where the node listens and how it shuts down."""

    host = flag("server.host")
    port = flag("server.port")
    grpc_port = flag("server.grpc_port")
    grpc = flag("server.grpc")
    reuse_port = flag("server.reuse_port")
    keep_sessions = flag("sessions.keep_on_drain")
    strict = flag("server.strict")
    drain_timeout = flag("server.drain_timeout_s")


@flag_group(SECURITY)
class SecurityFlags(FlagGroup):
    """Who may call."""

    api_key = flag("server.api_keys", is_secret=True)
    admin_key = flag("server.admin_keys", is_secret=True)
    gateway_key = flag("server.gateway_keys", is_secret=True)
    tls_cert = flag("server.tls_cert")
    tls_key = flag("server.tls_key")
    cors_origin = flag("server.cors_origins")


@flag_group(HOLDING)
class ResidencyFlags(FlagGroup):
    """How many models are loaded, and for how long."""

    auto_load = flag("residency.auto_load")
    max_models = flag("residency.max_models")
    keep_alive = flag("residency.keep_alive_s")
    offline = flag("hub.offline")


@flag_group(JOINING)
class JoinFlags(FlagGroup):
    """The gateways that the node joins."""

    join = flag("join.urls")
    join_key = flag("join.key", is_secret=True)
    node_name = flag("join.name")
    advertise = flag("join.advertise")


_RESIDENCY_UNSET = ResidencyFlags()
_SERVER_UNSET = ServerFlags()
SECURITY_UNSET = SecurityFlags()
_JOIN_UNSET = JoinFlags()


def serve(
    *models: Annotated[
        str, Parameter(help="GGUF files or names (default: the embedded model).", group=MODEL)
    ],
    served_name: Annotated[
        list[str] | None,
        Parameter(help="Name that callers use; repeat for several models.", group=MODEL, negative=()),
    ] = None,
    server: ServerFlags = _SERVER_UNSET,
    security: SecurityFlags = SECURITY_UNSET,
    engine: EngineFlags = ENGINE_UNSET,
    residency: ResidencyFlags = _RESIDENCY_UNSET,
    join: JoinFlags = _JOIN_UNSET,
    output: OutputFlags = OUTPUT_UNSET,
) -> int:
    """Run a node: models behind HTTP."""
    groups = (server, security, engine, residency, join)
    flags = [setting for group in groups for setting in group.settings()]
    output = with_config_file(output)
    config = load_config(output, flags)
    set_up_logging(config.log.level, config.log.format)
    return _serve(config, lambda: load_config(output, flags), models, served_name or ())


def _serve(
    config: Config, reread: Callable[[], Config], models: Sequence[str], served_names: Sequence[str]
) -> int:
    # gRPC reads these when it is imported. Nothing here forks without replacing itself at once, and of every
    # worker that is started it would write a line to stderr.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    import uvloop

    from ganglion.cli.compose import compose, models_of
    from ganglion.cli.system.this_machine import ThisMachine
    from ganglion.server.bind import InsecureBind, StartRefused, bind, check_bind

    settings = structs.replace(config.server, build=BuildInfo(version=__version__))
    settings.check()
    config.sessions.check()
    sessions = structs.replace(config.sessions, folder=home_folder(os.environ) / "data" / "sessions")
    rpc: list[str] = []

    def server() -> _ServeFunction:
        from ganglion.cli.system.version import libraries
        from ganglion.server.life.serve import Reloaded, serve

        def reload() -> Reloaded:
            fresh = reread()
            named = models_of(fresh, models, served_names)
            engine = composition.engine
            return Reloaded(
                fresh.server.api_keys,
                lambda: engine.configure(named.warm, named.known),
                fresh.server.gateway_keys,
                fresh.server.admin_keys,
            )

        return partial(
            serve,
            composition.engine,
            structs.replace(settings, build=BuildInfo(version=__version__, libraries=libraries())),
            on_listening=lambda url: say(
                _welcome(url, composition.origins, model_id, has_keys=settings.has_keys, rpc=rpc)
            ),
            machine=machine.source(),
            reload=reload,
            storage=store_target(config.store, home_folder(os.environ)),
            sessions=sessions,
            on_rpc=rpc.append,
            join=config.join,
        )

    try:
        check_bind(settings)
        if config.join.urls:
            from ganglion.server.life.joining import check_join

            check_join(config.join, settings)
        machine = ThisMachine()
        composition = compose(
            config,
            models,
            served_names,
            bar=download_bar,
            is_kv_kept=True,
            free_video_bytes=machine.free_video_bytes,
            cards=machine.cards,
        )
        model_id = composition.engine.models()[0].id
        # Now: beside the server's modules it would take twice as long to import, and the model waits for it.
        ENGINES[config.engine.name].load()
        with bind(settings) as listener, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_run_node(composition.engine, server, listener))
    except StartRefused as refused:
        say_error(refused.message, refused.hint)
        return 2 if isinstance(refused, InsecureBind) else 1
    return 0


async def _run_node(
    engine: "ManagedEngine", server: Callable[[], _ServeFunction], listener: socket.socket
) -> None:
    """A node's life. Its modules take as long to read as a small model to load, so both begin at once."""
    opening = asyncio.create_task(engine.open())
    showing = asyncio.create_task(show_downloads(engine.models, opening))
    try:
        serve = await asyncio.to_thread(server)
    except BaseException:
        showing.cancel()
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)
        await engine.close()
        raise
    try:
        await serve(opening=opening, listener=listener)
    finally:
        showing.cancel()
        await asyncio.gather(showing, return_exceptions=True)


def store_target(settings: StoreSettings, home: Path) -> "StoreTarget | None":
    """The database to keep responses and conversations in; None to keep nothing."""
    from ganglion.server.life.storage import StoreTarget
    from ganglion.store.response_store import Retention

    location = settings.location(home)
    if location is None:
        return None
    retention = Retention(
        max_age_s=settings.max_age_days * 86400.0 or None, max_bytes=settings.max_mb * 2**20 or None
    )
    return StoreTarget(location, retention, is_asked_for=settings.url is not None)


def _welcome(
    url: str, origins: Sequence[str], model_id: str, *, has_keys: bool, rpc: Sequence[str] = ()
) -> str:
    """Where the node is, where its models came from, and three ways to try it."""
    models = "\n".join(f"  {origin}" for origin in origins)
    sessions = "".join(f"token sessions over gRPC on {address}\n" for address in rpc)
    key_header = ' -H "authorization: Bearer $KEY"' if has_keys else ""
    json_header = "-H 'content-type: application/json'"
    body = f'{{"model": "{model_id}", "messages": [{{"role": "user", "content": "Hello"}}]}}'
    key = "os.environ['KEY']" if has_keys else "'none'"
    imports = "import os; from openai import OpenAI" if has_keys else "from openai import OpenAI"
    call = (
        f"{imports}; print(OpenAI(base_url='{url}/v1', api_key={key}).chat.completions.create("
        f"model='{model_id}', messages=[{{'role': 'user', 'content': 'Hello'}}]).choices[0].message.content)"
    )
    return (
        f"ganglion {__version__} listens on {url}\n{sessions}{models}\n\ntry:\n"
        f"  curl {url}/v1/chat/completions{key_header} {json_header} -d {shlex.quote(body)}\n"
        f'  python -c "{call}"\n'
        f"  {url}/ in a browser\n"
    )
