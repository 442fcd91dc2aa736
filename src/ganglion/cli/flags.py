"""Flags that set config keys, and those that several commands share.

Law: a flag of a config key is declared by that key, and takes its type, default and help from it. It is
called as its attribute is; config checks its value, and names the flag where the value is wrong.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar, dataclass_transform

from cyclopts import Group, Parameter, validators

from ganglion import config as configuration
from ganglion.config import PREFIX, Config, Setting
from ganglion.core.home import home_folder
from ganglion.core.request import Prompt, Request, Stop
from ganglion.core.sampling import PARAMS, sampling_from

MODEL = Group("Model", sort_key=1)
_ENGINE = Group("Engine", sort_key=2)
_SAMPLING = Group("Sampling (left out: the model's own defaults)", sort_key=3)
HOLDING = Group("Holding models", sort_key=3)
FLEET = Group("Fleet", sort_key=1)
SERVER = Group("Server", sort_key=4)
SECURITY = Group("Security", sort_key=5)
JOINING = Group("Joining a fleet", sort_key=6)
OUTPUT = Group("Logs and configuration", sort_key=7)

AT_LEAST_1 = validators.Number(gte=1)
_SHARE = validators.Number(gte=0, lte=1)

_KEY: Final = "config key"
_G = TypeVar("_G", bound="FlagGroup")


def option(help_text: str, validator: validators.Number | None = None) -> Parameter:
    """A flag that sets no config key, with its help and the numbers it takes."""
    return Parameter(help=help_text, validator=validator)


def _sampling_option(name: str) -> Parameter:
    """A flag for a sampling parameter, with the help and the bounds that it has everywhere."""
    param = PARAMS[name]
    bounds = param.limits
    validator = validators.Number(gte=bounds.get("ge"), gt=bounds.get("gt"), lte=bounds.get("le"))
    return Parameter(help=param.doc, validator=validator)


def is_text(_: object, text: str | None) -> None:
    """Keeps a mistyped flag from being taken for a text, which `-` made possible."""
    if text is not None and text.startswith("-") and text != "-":
        raise ValueError("There is no such flag; a text that begins with - can come through stdin.")


class FlagGroup:
    """Flags of one heading of `--help`."""

    def settings(self) -> Iterator[Setting]:
        """The config keys of the flags that were given."""
        for attribute in fields(self):  # type: ignore[arg-type]
            value = getattr(self, attribute.name)
            if _KEY in attribute.metadata and value is not None:
                typed = f"--{attribute.name.replace('_', '-')}"
                yield Setting(attribute.metadata[_KEY], value, f"the flag {typed}")


@dataclass(frozen=True, slots=True)
class _Declared:
    key: str
    default: object
    is_secret: bool


def flag(key: str, *, default: object = MISSING, is_secret: bool = False) -> Any:
    """The flag of a config key, None while it is not given.

    `default` is shown in place of the key's where the command has its own. A secret's help says how to keep
    it out of the list of processes.
    """
    return _Declared(key, default, is_secret)


@dataclass_transform(kw_only_default=True, frozen_default=True)
def flag_group(group: Group) -> Callable[[type[_G]], type[_G]]:
    """Make a class of `flag`s and ordinary fields one parameter of a command."""

    def made(cls: type[_G]) -> type[_G]:
        for name, declared in list(vars(cls).items()):
            if isinstance(declared, _Declared):
                cls.__annotations__[name] = _annotation(declared)
                setattr(cls, name, field(default=None, metadata={_KEY: declared.key}))
        return Parameter(name="*", group=group)(dataclass(frozen=True, kw_only=True)(cls))

    return made


def _annotation(declared: _Declared) -> Any:
    key = configuration.keys()[declared.key]
    kind = configuration.value_type(key.field)
    default = key.field.default if declared.default is MISSING else declared.default
    help_text = key.description.replace("`", "")
    if kind == tuple[str, ...]:
        kind, help_text = list[str], f"{help_text} May be repeated."
    elif default is not None and default is not False:
        help_text = f"{help_text} Default: {_shown(default)}."
    if declared.is_secret:
        variable = PREFIX + declared.key.upper().replace(".", "__")
        help_text = f"{help_text} {variable} keeps it out of ps."
    return Annotated[kind | None, Parameter(help=help_text, negative=() if kind == list[str] else None)]


def _shown(default: object) -> str:
    match default:
        case bool():
            return "on"
        case float():
            return f"{default:g}"
        case _:
            return str(default)


@flag_group(_ENGINE)
class EngineFlags(FlagGroup):
    """How a model is run."""

    engine = flag("engine.name")
    threads = flag("engine.threads")
    context = flag("engine.context")
    kv_tokens = flag("engine.kv_tokens")
    parallel = flag("engine.parallel")
    kv_type = flag("engine.kv_type")
    gpu_layers = flag("engine.gpu_layers")
    gpu_split = flag("engine.gpu_split")
    gpu_main = flag("engine.gpu_main")
    graph_sampling = flag("engine.graph_sampling")
    deterministic = flag("engine.deterministic")
    chat_template = flag("engine.chat_template")
    mmproj = flag("engine.mmproj")
    concepts = flag("engine.concepts")


@Parameter(name="*", group=_SAMPLING)
@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingFlags:
    """How the next token is chosen."""

    max_tokens: Annotated[
        int | None, option("Stop after so many tokens (default 2048, or the room left).", AT_LEAST_1)
    ] = None
    temperature: Annotated[float | None, _sampling_option("temperature")] = None
    top_p: Annotated[float | None, _sampling_option("top_p")] = None
    top_k: Annotated[int | None, _sampling_option("top_k")] = None
    min_p: Annotated[float | None, _sampling_option("min_p")] = None
    repetition_penalty: Annotated[float | None, _sampling_option("repetition_penalty")] = None
    seed: Annotated[int | None, _sampling_option("seed")] = None
    stop: Annotated[
        list[str] | None, Parameter(help="Text that ends the answer; may be repeated.", negative=())
    ] = None

    def request(self, request_id: str, model: str, prompt: Prompt) -> Request:
        """A request that is answered so."""
        sampling = sampling_from({name: getattr(self, name) for name in PARAMS if hasattr(self, name)})
        stop = Stop(strings=tuple(self.stop or ()))
        return Request(request_id, model, prompt, sampling=sampling, stop=stop, max_tokens=self.max_tokens)


@flag_group(OUTPUT)
class OutputFlags(FlagGroup):
    """Where settings come from and what is logged."""

    config: Annotated[
        Path | None, option("A TOML file (default: config.toml in GANGLION_HOME, if there is one).")
    ] = None
    log_level = flag("log.level", default="info for serve and gateway, warning for other commands")
    log_format = flag("log.format")


ConfigFile = Annotated[
    Path | None, Parameter(help="A TOML file (default: config.toml in GANGLION_HOME).", group=OUTPUT)
]
Json = Annotated[bool, Parameter(help="JSON instead of text for people.", group=OUTPUT, negative=())]

ENGINE_UNSET = EngineFlags()
SAMPLING_UNSET = SamplingFlags()
OUTPUT_UNSET = OutputFlags()


def with_config_file(output: OutputFlags) -> OutputFlags:
    """The flags with the config file that is there now.

    For a command that reads it again later: then a file that is gone is an error, not defaults.
    """
    return replace(output, config=_config_file(output.config))


def load_config(
    output: OutputFlags, settings: Iterable[Setting] = (), defaults: Mapping[str, object] | None = None
) -> Config:
    """The config of this invocation; `defaults` are this command's own."""
    given = (*settings, *output.settings())
    return configuration.load(_config_file(output.config), os.environ, given, defaults)


def _config_file(named: Path | None) -> Path | None:
    if named is not None:
        return named
    default = home_folder(os.environ) / "config.toml"
    return default if default.is_file() else None
