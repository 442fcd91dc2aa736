"""`ganglion serve`: models behind HTTP, until a signal ends it."""

import asyncio
import os
import shlex
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Protocol

from cyclopts import Parameter

from ganglion import __version__
from ganglion.cli.flags import (
    AT_LEAST_0,
    AT_LEAST_1,
    ENGINE_UNSET,
    HOLDING,
    JOIN_UNSET,
    MODEL,
    OUTPUT_UNSET,
    PORT,
    SECURITY,
    SERVER,
    EngineFlags,
    JoinFlags,
    OutputFlags,
    join_settings,
    option,
)
from ganglion.cli.terminal.console import say, say_error
from ganglion.cli.terminal.progress import show_downloads
from ganglion.config import Config, ServerConfig, SessionsConfig, StoreConfig, home
from ganglion.core.engine import ManagedEngine
from ganglion.core.errors import InvalidValue
from ganglion.server.settings import AnswerDeadlines, BuildInfo, ServerSettings
from ganglion.sessions.settings import SessionSettings

if TYPE_CHECKING:
    from ganglion.server.life.storage import StoreSettings

OFF: Final = "off"
"""The store's url of a node that keeps nothing."""


class ServeFunction(Protocol):
    """What serves a socket until it is told to end, over an engine that is being opened."""

    async def __call__(self, *, opening: asyncio.Task[None], listener: socket.socket) -> None: ...


@Parameter(name="*", group=SERVER)
@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFlags:
    """Where the node listens and how it lets go."""

    host: Annotated[str | None, option("Address to listen on (default 127.0.0.1: this machine only).")] = None
    port: Annotated[int | None, option("Port of HTTP; 0 takes a free one (default 8080).", PORT)] = None
    grpc_port: Annotated[
        int | None,
        option("Port of gRPC, for token sessions; 0 takes a free one (default: HTTP's and one more).", PORT),
    ] = None
    grpc: Annotated[bool | None, option("Serve token sessions over gRPC (default on).")] = None
    reuse_port: Annotated[
        bool | None, option("Share the ports with other processes that are started with this flag.")
    ] = None
    keep_sessions: Annotated[
        bool | None,
        option("Write open sessions to disk at shutdown, and bring them back at the next start."),
    ] = None
    strict: Annotated[bool | None, option("Refuse request fields that nobody knows.")] = None
    drain_timeout: Annotated[
        float | None, option("Seconds that running answers get at shutdown (default 30).", AT_LEAST_0)
    ] = None

    def settings(self) -> Mapping[str, object]:
        """As config keys; None where a flag was not given."""
        return {
            "server.host": self.host,
            "server.port": self.port,
            "server.grpc_port": self.grpc_port,
            "server.grpc": self.grpc,
            "server.reuse_port": self.reuse_port,
            "sessions.keep_on_drain": self.keep_sessions,
            "server.strict": self.strict,
            "server.drain_timeout_s": self.drain_timeout,
        }


@Parameter(name="*", group=SECURITY)
@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityFlags:
    """Who may call."""

    api_key: Annotated[
        list[str] | None,
        Parameter(
            help="A key that callers must send; may be repeated. GANGLION_SERVER__API_KEYS hides it from ps.",
            negative=(),
        ),
    ] = None
    admin_key: Annotated[
        list[str] | None,
        Parameter(
            help="A key that may also load and unload models, and move a fleet; may be repeated.", negative=()
        ),
    ] = None
    gateway_key: Annotated[
        list[str] | None,
        Parameter(
            help="A gateway's key, which is believed about whose a request is; may be repeated.", negative=()
        ),
    ] = None
    tls_cert: Annotated[str | None, option("Certificate chain, PEM; serves https.")] = None
    tls_key: Annotated[str | None, option("Private key of the certificate, PEM.")] = None
    cors_origin: Annotated[
        list[str] | None,
        Parameter(help="Origin of a web page that may call; may be repeated.", negative=()),
    ] = None

    def settings(self) -> Mapping[str, object]:
        """As config keys; None where a flag was not given."""
        return {
            "server.api_keys": self.api_key,
            "server.admin_keys": self.admin_key,
            "server.gateway_keys": self.gateway_key,
            "server.tls_cert": self.tls_cert,
            "server.tls_key": self.tls_key,
            "server.cors_origins": self.cors_origin,
        }


@Parameter(name="*", group=HOLDING)
@dataclass(frozen=True, slots=True, kw_only=True)
class ResidencyFlags:
    """Which models are held, and for how long."""

    auto_load: Annotated[
        bool | None, option("Load the model that a request names (default on; off with --join).")
    ] = None
    max_models: Annotated[
        int | None, option("Models loaded at once (default: as many as fit into memory).", AT_LEAST_1)
    ] = None
    keep_alive: Annotated[
        float | None, option("Unload a model that nobody asked for in so many seconds.", AT_LEAST_0)
    ] = None
    offline: Annotated[bool | None, option("Never ask the hub; use what is here.")] = None

    def settings(self) -> Mapping[str, object]:
        """As config keys; None where a flag was not given."""
        return {
            "residency.auto_load": self.auto_load,
            "residency.max_models": self.max_models,
            "residency.keep_alive_s": self.keep_alive,
            "hub.offline": self.offline,
        }


RESIDENCY_UNSET = ResidencyFlags()
SERVER_UNSET = ServerFlags()
SECURITY_UNSET = SecurityFlags()


def serve(
    *models: Annotated[
        str, Parameter(help="GGUF files or names (default: the embedded model).", group=MODEL)
    ],
    served_name: Annotated[
        list[str] | None,
        Parameter(help="Name that callers use; repeat for several models.", group=MODEL, negative=()),
    ] = None,
    server: ServerFlags = SERVER_UNSET,
    security: SecurityFlags = SECURITY_UNSET,
    engine: EngineFlags = ENGINE_UNSET,
    residency: ResidencyFlags = RESIDENCY_UNSET,
    join: JoinFlags = JOIN_UNSET,
    output: OutputFlags = OUTPUT_UNSET,
) -> int:
    """Run a node: models behind HTTP."""
    from ganglion.cli.flags import load_config, with_config_file
    from ganglion.cli.terminal.logs import set_up_logging

    groups = (server, security, engine, residency, join)
    flags = {key: value for group in groups for key, value in group.settings().items()}
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
    from ganglion.cli.model_builder import ENGINES, load_engine_class
    from ganglion.cli.system.this_machine import ThisMachine
    from ganglion.cli.terminal.progress import download_bar
    from ganglion.server.bind import InsecureBind, StartRefused, bind, check_bind

    settings = server_settings(config.server)
    sessions = session_settings(config.sessions, home(os.environ))
    rpc: list[str] = []

    def server() -> ServeFunction:
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
            replace(settings, build=BuildInfo(version=__version__, libraries=libraries())),
            on_listening=lambda url: say(
                welcome(url, composition.origins, model_id, has_keys=settings.has_keys, rpc=rpc)
            ),
            machine=machine.source(),
            reload=reload,
            storage=storage_of(config.store, home(os.environ)),
            sessions=sessions,
            on_rpc=rpc.append,
            join=join_settings(config.join),
        )

    try:
        check_bind(settings)
        if config.join.urls:
            from ganglion.server.life.joining import check_join

            check_join(join_settings(config.join), settings)
        machine = ThisMachine()
        composition = compose(
            config,
            models,
            served_names,
            bar=download_bar,
            is_kv_kept=True,
            free_video_bytes=machine.free_video_bytes,
        )
        model_id = composition.engine.models()[0].id
        # Now: beside the server's modules it would take twice as long to import, and the model waits for it.
        load_engine_class(ENGINES[config.engine.name])
        with bind(settings) as listener, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_run_node(composition.engine, server, listener))
    except StartRefused as refused:
        say_error(refused.message, refused.hint)
        return 2 if isinstance(refused, InsecureBind) else 1
    return 0


async def _run_node(
    engine: ManagedEngine, server: Callable[[], ServeFunction], listener: socket.socket
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


def storage_of(config: StoreConfig, home: Path) -> "StoreSettings | None":
    """Where to keep responses and conversations; None for nowhere."""
    from ganglion.server.life.storage import StoreSettings
    from ganglion.store.opening import FILE_NAME
    from ganglion.store.response_store import Retention

    if config.url == OFF:
        return None
    retention = Retention(
        max_age_s=config.max_age_days * 86400.0 or None, max_bytes=config.max_mb * 2**20 or None
    )
    place = home / "data" / FILE_NAME if config.url is None else config.url
    return StoreSettings(place, retention, is_asked_for=config.url is not None)


def session_settings(config: SessionsConfig, home: Path) -> SessionSettings:
    """The sessions' limits out of the operator's config; raises InvalidValue where two keys disagree."""
    if config.ttl_s > config.max_ttl_s:
        raise InvalidValue(
            f"sessions.ttl_s is {config.ttl_s:g} and sessions.max_ttl_s {config.max_ttl_s:g}.",
            hint="Raise sessions.max_ttl_s.",
        )
    return SessionSettings(
        default_ttl_s=config.ttl_s,
        max_ttl_s=config.max_ttl_s,
        max_per_key=config.max_per_key,
        max_tokens=config.max_tokens,
        folder=home / "data" / "sessions",
        keeps_on_drain=config.keep_on_drain,
    )


def server_settings(config: ServerConfig) -> ServerSettings:
    """The doors' settings out of the operator's config; raises InvalidValue where two keys disagree."""
    if (config.tls_cert is None) != (config.tls_key is None):
        raise InvalidValue(
            "A TLS certificate and its key are given together.", hint="Set both --tls-cert and --tls-key."
        )
    if config.grpc_port is not None and not config.grpc:
        raise InvalidValue(
            "A port for gRPC is given, and gRPC is switched off.", hint="Leave one of the two out."
        )
    deadlines = config.deadlines
    return ServerSettings(
        host=config.host,
        port=config.port,
        has_grpc=config.grpc,
        grpc_port=config.grpc_port,
        has_reuse_port=config.reuse_port,
        api_keys=config.api_keys,
        admin_keys=config.admin_keys,
        gateway_keys=config.gateway_keys,
        most_urgent=config.most_urgent,
        cors_origins=config.cors_origins,
        allowed_hosts=config.allowed_hosts,
        is_strict=config.strict,
        max_body_bytes=config.max_body_bytes,
        max_connections=config.max_connections,
        deadlines=AnswerDeadlines(
            deadlines.queue_s, deadlines.first_token_s, deadlines.idle_s, deadlines.total_s
        ),
        drain_timeout_s=config.drain_timeout_s,
        tls_cert=config.tls_cert,
        tls_key=config.tls_key,
        build=BuildInfo(version=__version__),
    )


def welcome(
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
