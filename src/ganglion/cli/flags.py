"""Flags that several commands share, as values."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ganglion import config as configuration
from ganglion.config import Config, JoinConfig

if TYPE_CHECKING:
    from ganglion.server.life.joining import JoinSettings

from typing import Literal

from cyclopts import Group, validators

from ganglion.core.request import Sampling

MODEL = Group("Model", sort_key=1)
ENGINE = Group("Engine", sort_key=2)
SAMPLING = Group("Sampling (left out: the model's own defaults)", sort_key=3)
HOLDING = Group("Holding models", sort_key=3)
FLEET = Group("Fleet", sort_key=1)
SERVER = Group("Server", sort_key=4)
SECURITY = Group("Security", sort_key=5)
JOINING = Group("Joining a fleet", sort_key=6)
OUTPUT = Group("Logs and configuration", sort_key=7)


AT_LEAST_0 = validators.Number(gte=0)
AT_LEAST_1 = validators.Number(gte=1)
SHARE = validators.Number(gte=0, lte=1)
PORT = validators.Number(gte=0, lte=65535)


def option(help_text: str, validator: validators.Number | None = None) -> Parameter:
    """A flag with its help and the numbers it takes."""
    return Parameter(help=help_text, validator=validator)


def is_text(_: object, text: str | None) -> None:
    """Keeps a mistyped flag from being taken for a text, which `-` made possible."""
    if text is not None and text.startswith("-") and text != "-":
        raise ValueError("There is no such flag; a text that begins with - can come through stdin.")


@Parameter(name="*", group=ENGINE)
@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFlags:
    """How a model is run."""

    engine: Annotated[
        Literal["llama", "echo"] | None, option("llama runs GGUF files, echo repeats you (default llama).")
    ] = None
    threads: Annotated[int | None, option("Decode threads (default: from the machine).", AT_LEAST_1)] = None
    context: Annotated[
        int | None,
        option(
            "Longest single sequence, in tokens (default: what the model was trained on, at most 8192).",
            AT_LEAST_1,
        ),
    ] = None
    kv_tokens: Annotated[
        int | None,
        option("Cache that all sequences share, in tokens (default: the context and 8192).", AT_LEAST_1),
    ] = None
    parallel: Annotated[
        int | None, option("Requests that run at once, further ones wait (default 64).", AT_LEAST_1)
    ] = None
    kv_type: Annotated[
        Literal["f16", "q8_0", "q4_0"] | None, option("Element type of the cache (default f16).")
    ] = None
    gpu_layers: Annotated[
        int | None, option("Layers on a GPU, if the library was built for one (default 0).", AT_LEAST_0)
    ] = None
    deterministic: Annotated[
        bool | None, option("Answers do not depend on what else is running; slower.")
    ] = None
    chat_template: Annotated[
        str | None, option("A Jinja file, or the template itself, in place of the model's own.")
    ] = None
    concepts: Annotated[
        list[str] | None,
        Parameter(
            help="A concept pack to read out and to steer by: a file, or a name; may be repeated.",
            negative=(),
        ),
    ] = None

    def settings(self) -> Mapping[str, object]:
        """As config keys; None where a flag was not given."""
        return {
            "engine.name": self.engine,
            "engine.threads": self.threads,
            "engine.context": self.context,
            "engine.kv_tokens": self.kv_tokens,
            "engine.parallel": self.parallel,
            "engine.kv_type": self.kv_type,
            "engine.gpu_layers": self.gpu_layers,
            "engine.deterministic": self.deterministic,
            "engine.chat_template": self.chat_template,
            "engine.concepts": self.concepts,
        }


@Parameter(name="*", group=SAMPLING)
@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingFlags:
    """How the next token is chosen."""

    max_tokens: Annotated[
        int | None, option("Stop after so many tokens (default 2048, or the room left).", AT_LEAST_1)
    ] = None
    temperature: Annotated[float | None, option("0 always takes the likeliest token.", AT_LEAST_0)] = None
    top_p: Annotated[
        float | None, option("Choose among the likeliest tokens that sum to this probability.", SHARE)
    ] = None
    top_k: Annotated[int | None, option("Choose among so many tokens; 0 for all.", AT_LEAST_0)] = None
    min_p: Annotated[
        float | None, option("Leave out tokens below this share of the likeliest one's probability.", SHARE)
    ] = None
    repetition_penalty: Annotated[float | None, option("Above 1 makes repeats less likely.", AT_LEAST_0)] = (
        None
    )
    seed: Annotated[int | None, option("The same seed gives the same answer.")] = None
    stop: Annotated[
        list[str] | None, Parameter(help="Text that ends the answer; may be repeated.", negative=())
    ] = None

    def sampling(self) -> Sampling:
        """As a request's sampling."""
        return Sampling(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            seed=self.seed,
        )


@Parameter(name="*", group=OUTPUT)
@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFlags:
    """Where settings come from and what is logged."""

    config: Annotated[
        Path | None, option("A TOML file (default: config.toml in GANGLION_HOME, if it is there).")
    ] = None
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"] | None,
        option("How much is said on stderr (default: serve info, others warning)."),
    ] = None
    log_format: Annotated[Literal["text", "json"] | None, option("How it is said (default text).")] = None

    def settings(self) -> Mapping[str, object]:
        """As config keys; None where a flag was not given."""
        return {"log.level": self.log_level, "log.format": self.log_format}


ENGINE_UNSET = EngineFlags()
SAMPLING_UNSET = SamplingFlags()
OUTPUT_UNSET = OutputFlags()


@Parameter(name="*", group=JOINING)
@dataclass(frozen=True, slots=True, kw_only=True)
class JoinFlags:
    """Which gateways the node joins."""

    join: Annotated[
        list[str] | None,
        Parameter(help="URL of a gateway to join; may be repeated.", negative=()),
    ] = None
    join_key: Annotated[
        str | None, option("A key of the gateway that may join nodes. GANGLION_JOIN__KEY hides it from ps.")
    ] = None
    node_name: Annotated[
        str | None, option("What the node is called in the fleet (default: host name and port).")
    ] = None
    advertise: Annotated[
        str | None, option("URL under which the gateway reaches the node (default: where it listens).")
    ] = None

    def settings(self) -> Mapping[str, object]:
        """As config keys; None where a flag was not given."""
        return {
            "join.urls": self.join,
            "join.key": self.join_key,
            "join.name": self.node_name,
            "join.advertise": self.advertise,
        }


JOIN_UNSET = JoinFlags()


def join_settings(config: JoinConfig) -> "JoinSettings":
    """Which gateways to join, out of the operator's config."""
    from ganglion.server.life.joining import JoinSettings

    return JoinSettings(config.urls, config.key, config.name, config.advertise)


def with_config_file(output: OutputFlags) -> OutputFlags:
    """The flags with the config file that is there now.

    For whoever reads it again later: then a file that is gone is an error, and not a config of defaults.
    """
    return replace(output, config=_config_file(output))


def load_config(
    output: OutputFlags, flags: Mapping[str, object], defaults: Mapping[str, object] | None = None
) -> Config:
    """The config of this invocation; `defaults` are this command's own."""
    return configuration.load(_config_file(output), os.environ, {**flags, **output.settings()}, defaults)


def _config_file(output: OutputFlags) -> Path | None:
    if output.config is not None:
        return output.config
    default = configuration.home(os.environ) / "config.toml"
    return default if default.is_file() else None
