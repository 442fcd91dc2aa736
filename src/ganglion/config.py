"""What the operator decided: one frozen Config from a TOML file, the environment and flags.

Law: flags win over `GANGLION_SECTION__KEY` over the file over the defaults, key by key; a key that does not
exist is an error that names where it stands and what it could have been. The words under each key are its
description in docs/configuration.md, which `make reference` writes.
"""

import difflib
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import FieldInfo, fields

from ganglion.core.errors import InvalidValue, UnknownParameter
from ganglion.engines.llama.settings import KvType, LlamaSettings
from ganglion.server.settings import ServerSettings
from ganglion.sessions.settings import SessionSettings

PREFIX: Final = "GANGLION_"
# Defaults stand once, in the rooms that know their reasons.
_SERVER: Final = ServerSettings()
_LLAMA: Final = LlamaSettings(model_id="")
_SESSIONS: Final = SessionSettings()

Port = Annotated[int, Meta(ge=0, le=65535)]
Count = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(gt=0)]


class DeadlinesConfig(Struct, frozen=True):
    """How long a request may wait, in seconds, before it fails with 504."""

    queue_s: Seconds = _SERVER.deadlines.queue_s
    """Until the engine starts the request: loading, rendering, tokenizing, waiting for a place."""
    first_token_s: Seconds = _SERVER.deadlines.first_token_s
    """From there to the first token."""
    idle_s: Seconds = _SERVER.deadlines.idle_s
    """Between two events after it."""
    total_s: Seconds = _SERVER.deadlines.total_s
    """All of it."""


class ServerConfig(Struct, frozen=True):
    """The doors."""

    host: str = _SERVER.host
    """Address to listen on; one that other machines reach needs a key."""
    port: Port = _SERVER.port
    """Port of HTTP; 0 takes a free one."""
    grpc: bool = _SERVER.has_grpc
    """Serve token sessions over gRPC."""
    grpc_port: Port | None = None
    """Port of gRPC; 0 takes a free one. Left out, HTTP's and one more, or a free one where HTTP takes one."""
    reuse_port: bool = _SERVER.has_reuse_port
    """Share the ports with other processes that set this too: the kernel deals connections out to them."""
    api_keys: tuple[str, ...] = ()
    """Keys of which callers must send one. They ask models, and change nothing else."""
    admin_keys: tuple[str, ...] = ()
    """Keys that may also change the server: load, unload and pull models, and on a gateway its fleet."""
    gateway_keys: tuple[str, ...] = ()
    """Keys of gateways: a caller with one is believed about whose a request is and how urgent it may be."""
    most_urgent: Annotated[int, Meta(ge=-1000, le=1000)] = _SERVER.most_urgent
    """The lowest `priority` that requests with one of `api_keys` may have; lower is more urgent."""
    cors_origins: tuple[str, ...] = ()
    """Origins of web pages that may call, or `*`."""
    allowed_hosts: tuple[str, ...] = ()
    """Names besides the loopback ones that the Host header may hold on a loopback bind, as behind a proxy."""
    tls_cert: str | None = None
    """Certificate chain, PEM; serves https. Given together with the key."""
    tls_key: str | None = None
    """Private key of the certificate, PEM."""
    strict: bool = False
    """Refuse request fields that nobody knows, instead of noting them in the debug log."""
    drain_timeout_s: Annotated[float, Meta(ge=0)] = _SERVER.drain_timeout_s
    """How long running answers get at shutdown, in seconds."""
    max_body_bytes: Count = _SERVER.max_body_bytes
    """Largest request body."""
    max_connections: Count = _SERVER.max_connections
    """Clients that may be connected at once, in each process; the next one gets 503. Each takes a file
    descriptor: `ulimit -n` must allow for more."""
    deadlines: DeadlinesConfig = DeadlinesConfig()


class EngineConfig(Struct, frozen=True):
    """How models are run; None lets the engine decide from the model and the machine."""

    name: Literal["llama", "echo"] = "llama"
    """`llama` runs GGUF files; `echo` repeats the question, for trying clients."""
    threads: Count | None = None
    """Threads of each worker; left out, the cores this process may use."""
    context: Count | None = None
    """Longest single sequence, prompt and answer, in tokens; left out, the trained length, at most 8192.
    Above the trained length is allowed, with a warning."""
    kv_tokens: Count | None = None
    """KV cache of all sequences together, in tokens, at least the context; left out, the context and 8192."""
    parallel: Count = _LLAMA.parallel
    """Sequences that run at once; further ones wait."""
    queue_limit: Annotated[int, Meta(ge=0)] = _LLAMA.queue_limit
    """Requests that may wait besides; more are refused with `overloaded`."""
    kv_type: KvType = _LLAMA.kv_type
    """Element type of the cache."""
    gpu_layers: Annotated[int, Meta(ge=0)] = 0
    """Layers on a GPU, for a library that was built for one."""
    deterministic: bool = False
    """An answer does not depend on what else is running; slower."""
    recast: bool = _LLAMA.is_recast
    """Q4_1 weights are held in another form of the same numbers, which is faster for batches and prompts."""
    hang_s: Seconds = _LLAMA.limits.hang_s
    """A worker that has work and takes no step for so many seconds is ended and started anew."""
    chat_template: str | None = None
    """A Jinja file, or the template itself; left out, the model's own, else ChatML."""
    concepts: tuple[str, ...] = ()
    """Concept packs to read out and to steer by: files, or names of those in the home folder's `concepts`.
    Each is loaded with the models that it was made for."""


class ResidencyConfig(Struct, frozen=True):
    """Which models are held, and for how long."""

    auto_load: bool | None = None
    """A request loads the model it names; off, it gets 404 for what is not loaded. Left out, on, and off for
    a node that joins a gateway, which decides what is loaded where."""
    max_models: Count | None = None
    """Models loaded at once; left out, as many as fit into memory."""
    memory_mb: Count | None = None
    """Memory of all loaded models together, in MiB; left out, what the machine has."""
    keep_alive_s: Seconds | None = None
    """A model that nobody asks for is unloaded after so many seconds; left out, it stays."""
    keep_kv_mb: Annotated[int, Meta(ge=0)] = 1024
    """Disk for the KV of unloaded models' prompts, in MiB, in the home folder's `cache/kv`; 0 for none."""


class StoreConfig(Struct, frozen=True):
    """Where responses and conversations are kept."""

    url: str | None = None
    """A SQLite file, `postgresql://…`, `:memory:`, or `off` to keep nothing; left out, `data/ganglion.db` in
    the home folder."""
    max_age_days: Annotated[float, Meta(ge=0)] = 30.0
    """How long they are kept, in days; 0 for ever."""
    max_mb: Annotated[int, Meta(ge=0)] = 10240
    """How much they may take together, in MiB, the oldest going first; 0 for no limit."""


class SessionsConfig(Struct, frozen=True):
    """Token sessions: how long they live, and how much they may hold."""

    ttl_s: Seconds = _SESSIONS.default_ttl_s
    """A session that nobody names for so many seconds is forgotten, unless its client asked otherwise."""
    max_ttl_s: Seconds = _SESSIONS.max_ttl_s
    """The most that a client may ask for."""
    max_per_key: Count = _SESSIONS.max_per_key
    """Sessions that one key may have open."""
    max_tokens: Count = _SESSIONS.max_tokens
    """Tokens that all sessions in memory may hold together."""
    keep_on_drain: bool = _SESSIONS.keeps_on_drain
    """Write open sessions to disk at shutdown, into the home folder's `data/sessions`; the next start brings
    them back."""


class GatewayConfig(Struct, frozen=True):
    """A gateway: how it knows its nodes, and how long it waits for them."""

    catalogue: str | None = None
    """A `models.toml`: which models may be loaded, where they fit, who may stand in for them. In a config
    file, relative to that file."""
    node_key: str | None = None
    """What it shows to nodes of ours: one of their `server.gateway_keys`."""
    lease_s: Annotated[float, Meta(ge=0.5, le=300)] = 5.0
    """How long a node that joined is believed in without a word from it."""
    poll_s: Annotated[float, Meta(ge=0.1, le=60)] = 2.0
    """How often each node is asked how it is; ours say so at once when something changes."""
    connect_s: Seconds = 3.0
    """How long a connection to a node may take."""
    first_byte_s: Seconds = 900.0
    """How long a node may take to begin an answer."""
    idle_s: Seconds = 300.0
    """How long an answer that has begun may be silent."""
    queue_requests: Annotated[int, Meta(ge=0, le=1_000_000)] = 1024
    """Requests that may wait for a node that has its `max_in_flight` running, tenants take turns, and
    the next request is refused with 503."""
    queue_s: Seconds = 30.0
    """How long each of these waits at most before it is refused with 503."""
    open_answer_tokens: Count = 4096
    """How long an answer may be whose request does not say, for keys with a cap on tokens or cost: a request
    reserves what it can take. A cap that allows less bounds it further."""
    tracing: bool = False
    """Each request is a span of OpenTelemetry, where its package is installed; docs/fleet.md says how."""


class NodeConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """A node that is declared rather than joining by itself."""

    url: str
    """`http://host:port`; of a foreign server with what stands before `/v1`."""
    name: str | None = None
    """In tables, metrics and session ids; left out, made from the address."""
    kind: Literal["ganglion", "openai"] = "ganglion"
    """`openai` is any server that speaks chat completions."""
    key_env: str | None = None
    """The environment variable that holds its key."""
    key_file: str | None = None
    """The file that holds its key; in a config file, relative to that file."""
    wires: (
        tuple[Literal["chat", "completions", "embeddings", "messages", "responses", "rerank"], ...] | None
    ) = None
    """What a foreign server speaks; left out, chat, completions and embeddings. Others are translated."""
    models: tuple[str, ...] | None = None
    """Only these of the models that it lists."""
    max_in_flight: Count | None = None
    """Requests that the gateway has running there at once."""
    cool_down_after: Count = 3
    """Failures in a row after which it is left alone."""
    cool_down_s: Annotated[float, Meta(ge=0)] = 10.0
    """For how long."""


class JoinConfig(Struct, frozen=True):
    """The gateways that a node joins by itself."""

    urls: tuple[str, ...] = ()
    """Their URLs, as in `http://gateway.lan:8000`."""
    key: str | None = None
    """What the node shows them: a key of theirs that may join nodes."""
    name: str | None = None
    """What the node is called in the fleet; left out, the name of the host and the port."""
    advertise: str | None = None
    """The URL under which a gateway reaches the node; left out, where it listens. A node that listens on
    every address needs it."""


class HubConfig(Struct, frozen=True):
    """Where models are downloaded from."""

    endpoint: str | None = None
    """Address of the hub; left out, `HF_ENDPOINT`, else huggingface.co."""
    download: bool = True
    """A name `org/repo[:quant]` that is not here is downloaded; off, it is unknown."""
    offline: bool = False
    """Never ask the hub; what is in its cache is used."""


class LogConfig(Struct, frozen=True):
    """What is said on stderr."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """How much is said on stderr."""
    format: Literal["text", "json"] = "text"
    """Lines of text, or one JSON object a line."""


class Config(Struct, frozen=True):
    """Everything an operator can decide."""

    server: ServerConfig = ServerConfig()
    engine: EngineConfig = EngineConfig()
    log: LogConfig = LogConfig()
    residency: ResidencyConfig = ResidencyConfig()
    hub: HubConfig = HubConfig()
    store: StoreConfig = StoreConfig()
    sessions: SessionsConfig = SessionsConfig()
    gateway: GatewayConfig = GatewayConfig()
    nodes: tuple[NodeConfig, ...] = ()
    join: JoinConfig = JoinConfig()
    models: tuple[str, ...] = ()
    """Loaded at the start: GGUF files, names from `models.yaml`, files that are here, hub ids
    `org/repo[:quant]`, or `smollm2`; left out, the embedded model."""
    folders: tuple[str, ...] = ()
    """Folders with GGUF files besides `models` in the home folder and other programs' stores."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One value as it was written, and where."""

    key: str
    value: object
    source: str
    is_text: bool = False
    """Written where everything is text: numbers are read out of it and lists are split at commas."""


def home(environment: Mapping[str, str]) -> Path:
    """Where Ganglion keeps models, cache and config."""
    return Path(environment.get(f"{PREFIX}HOME") or "~/.ganglion").expanduser()


def load(
    file: Path | None,
    environment: Mapping[str, str],
    flags: Mapping[str, object],
    defaults: Mapping[str, object] | None = None,
) -> Config:
    """Put the layers together; `flags` holds dotted keys, and None stands for a flag not given.

    `defaults` are those of a command that wants others than the usual ones.
    """
    settings = [
        *(Setting(key, value, "the command") for key, value in (defaults or {}).items()),
        *(_from_file(file) if file is not None else ()),
        *_from_environment(environment),
        *(Setting(key, value, _flag(key)) for key, value in flags.items() if value is not None),
    ]
    values: dict[str, object] = {}
    for setting in settings:
        values[setting.key] = _read(setting, _field(setting))
    return _build(values)


def _from_file(file: Path) -> Iterator[Setting]:
    try:
        table = tomllib.loads(file.read_text())
    except tomllib.TOMLDecodeError as error:
        raise InvalidValue(f"{file} is not TOML: {error}.") from error
    except UnicodeDecodeError as error:
        raise InvalidValue(f"{file} is not UTF-8 text.") from error
    except OSError as error:
        raise InvalidValue(f"The config file {file} could not be read: {error.strerror}.") from error
    for key, value in _flatten(table, ""):
        yield Setting(key, _relative_to_file(key, value, file.parent), str(file))


def _relative_to_file(key: str, value: object, folder: Path) -> object:
    """What a config file says of the files of a fleet, which may stand beside it."""
    match key, value:
        case "gateway.catalogue", str(path):
            return str(folder / Path(path).expanduser())
        case "nodes", list(nodes):
            return [_with_key_file(node, folder) for node in nodes]
        case _:
            return value


def _with_key_file(node: object, folder: Path) -> object:
    if not isinstance(node, dict) or not isinstance(path := node.get("key_file"), str):
        return node
    return {**node, "key_file": str(folder / Path(path).expanduser())}


def _flatten(table: Mapping[str, object], prefix: str) -> Iterator[tuple[str, object]]:
    for name, value in table.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict):
            yield from _flatten(value, f"{key}.")
        else:
            yield key, value


def _from_environment(environment: Mapping[str, str]) -> Iterator[Setting]:
    for name, value in sorted(environment.items()):
        key = name.removeprefix(PREFIX).lower().replace("__", ".")
        if name.startswith(PREFIX) and ("." in key or key == "models"):
            yield Setting(key, value, f"the environment variable {name}", is_text=True)


def _field(setting: Setting) -> FieldInfo:
    """The field that a dotted key names; raises UnknownParameter with the nearest key there is."""
    known = _known(Config, "")
    field = known.get(setting.key)
    if field is not None:
        return field
    nearest = difflib.get_close_matches(setting.key, known, n=1, cutoff=0.5)
    same_section = [key for key in known if key.startswith(f"{setting.key.partition('.')[0]}.")]
    hint = f"Did you mean {nearest[0]}?" if nearest else f"There are: {', '.join(same_section or known)}."
    raise UnknownParameter(f"Unknown key {setting.key} in {setting.source}.", param=setting.key, hint=hint)


def _known(struct: type[Struct], prefix: str) -> dict[str, FieldInfo]:
    known: dict[str, FieldInfo] = {}
    for field in fields(struct):
        if isinstance(field.type, type) and issubclass(field.type, Struct):
            known |= _known(field.type, f"{prefix}{field.name}.")
        else:
            known[f"{prefix}{field.name}"] = field
    return known


def _read(setting: Setting, field: FieldInfo) -> object:
    value = setting.value
    if setting.is_text and field.type == tuple[str, ...]:
        value = [part.strip() for part in str(value).split(",") if part.strip()]
    try:
        return msgspec.convert(value, field.type, strict=not setting.is_text)
    except msgspec.ValidationError as error:
        raise InvalidValue(
            f"{setting.key} in {setting.source} has the wrong value: {error}.", param=setting.key
        ) from error


def _build(values: Mapping[str, object]) -> Config:
    tree: dict[str, Any] = {}
    for key, value in values.items():
        *sections, name = key.split(".")
        table = tree
        for section in sections:
            table = table.setdefault(section, {})
        table[name] = value
    return msgspec.convert(tree, Config)


def _flag(key: str) -> str:
    return f"the flag --{key.rpartition('.')[2].removesuffix('_s').replace('_', '-')}"
