"""Ollama's model routes: tags, ps, show, version and pull."""

import hashlib
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET, Struct, UnsetType

from ganglion.core.engine import LoadProgress, ModelState, TokenizerInfo, find_model
from ganglion.core.errors import GanglionError, MissingParameter
from ganglion.core.sampling import Sampling
from ganglion.wire.decode import decode
from ganglion.wire.frame import Frame
from ganglion.wire.ollama.errors import encode_error
from ganglion.wire.ollama.schema import OllamaPullBody, OllamaShowBody, moment

API_LEVEL: Final = "0.12.11"
"""The version of Ollama whose API this is: clients ask for it to learn which fields they may send."""
_FOR_EVER: Final = "9999-12-31T23:59:59Z"
"""When a model leaves that leaves only when it must."""

_RUNNING: Final = frozenset({"loaded", "draining", "recovering"})
_LATEST: Final = ":latest"
_HUBS: Final = ("hf.co/", "huggingface.co/")
_CAPABILITIES: Final = (
    ("completion", frozenset({"chat", "completion"})),
    ("tools", frozenset({"tools"})),
    ("thinking", frozenset({"reasoning"})),
    ("vision", frozenset({"vision"})),
    ("embedding", frozenset({"embeddings"})),
)
_encode = msgspec.json.Encoder().encode
_show = msgspec.json.Decoder(OllamaShowBody)


class OllamaDetails(Struct, frozen=True, kw_only=True):
    """The kind of a model; empty where its file has not been read."""

    parent_model: str = ""
    format: str
    family: str
    families: tuple[str, ...]
    parameter_size: str
    quantization_level: str


class OllamaTag(Struct, frozen=True, kw_only=True):
    """One model that can be asked for; the digest stands for its id, not for its bytes."""

    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: OllamaDetails


class OllamaTags(Struct, frozen=True):
    """Every model that can be asked for."""

    models: tuple[OllamaTag, ...]


class OllamaRunning(Struct, frozen=True, kw_only=True):
    """One model that is in memory."""

    name: str
    model: str
    size: int
    digest: str
    details: OllamaDetails
    expires_at: str
    size_vram: int
    context_length: int


class OllamaProcesses(Struct, frozen=True):
    """Every model that is in memory."""

    models: tuple[OllamaRunning, ...]


class OllamaShown(Struct, frozen=True, kw_only=True):
    """One model in full."""

    license: str = ""
    modelfile: str = ""
    parameters: str
    template: str
    details: OllamaDetails
    model_info: dict[str, Any]
    capabilities: tuple[str, ...]
    modified_at: str


class OllamaVersion(Struct, frozen=True):
    """The version of Ollama's API that is served."""

    version: str


def known(name: str, models: Sequence[ModelState]) -> ModelState | None:
    """The model that a name means, of those that are listed."""
    return find_model(models, meant(name, models))


def meant(name: str, models: Sequence[ModelState]) -> str:
    """The name as the engine knows it: `:latest` says nothing, and `hf.co/` is where hub ids come from."""
    names = {each: each for model in models for each in (*model.aliases, model.id)}
    folded = {each.casefold(): each for each in names}
    bare = next((name.removeprefix(hub) for hub in _HUBS if name.startswith(hub)), name)
    for spelt in (bare, bare.removesuffix(_LATEST)):
        if spelt in names or spelt.casefold() in folded:
            return spelt if spelt in names else folded[spelt.casefold()]
    return bare.removesuffix(_LATEST) or name


def _digest_of(model_id: str) -> str:
    """The digest by which clients tell models apart."""
    return hashlib.sha256(model_id.encode("utf-8", "surrogatepass")).hexdigest()


def parse_show(body: bytes) -> str:
    """The model that is asked about."""
    return _named(decode(_show, body))


def _named(fields: OllamaShowBody | OllamaPullBody) -> str:
    name = fields.model or fields.name
    if name is None:
        raise MissingParameter("The parameter 'model' is required.", param="model")
    return name


def tags(models: Sequence[ModelState]) -> bytes:
    """The body of `GET /api/tags`."""
    return _encode(OllamaTags(tuple(_tag(model) for model in models)))


def processes(models: Sequence[ModelState]) -> bytes:
    """The body of `GET /api/ps`."""
    return _encode(OllamaProcesses(tuple(_running(model) for model in models if model.status in _RUNNING)))


def version() -> bytes:
    """The body of `GET /api/version`."""
    return _encode(OllamaVersion(API_LEVEL))


def shown(model: ModelState, tokenizer: TokenizerInfo | None) -> bytes:
    """The body of `POST /api/show`; without a tokenizer, what is known without loading the model."""
    facts = model.facts
    template = (facts.chat_template or "") if facts else ""
    return _encode(
        OllamaShown(
            parameters=_parameters(facts.sampling) if facts else "",
            template=template if tokenizer is None else tokenizer.chat_template,
            details=_details(model),
            model_info=_model_info(model, tokenizer),
            capabilities=tuple(name for name, ours in _CAPABILITIES if ours & set(model.capabilities)),
            modified_at=moment(model.created_s),
        )
    )


def _tag(model: ModelState) -> OllamaTag:
    return OllamaTag(
        name=model.id,
        model=model.id,
        modified_at=moment(model.created_s),
        size=model.facts.size_bytes if model.facts else model.memory_mb << 20,
        digest=_digest_of(model.id),
        details=_details(model),
    )


def _running(model: ModelState) -> OllamaRunning:
    size = model.memory_mb << 20
    return OllamaRunning(
        name=model.id,
        model=model.id,
        size=size,
        digest=_digest_of(model.id),
        details=_details(model),
        expires_at=_FOR_EVER,
        size_vram=0 if model.devices == ("cpu",) else size,
        context_length=model.context_length,
    )


def _details(model: ModelState) -> OllamaDetails:
    facts = model.facts
    family = facts.architecture if facts else ""
    return OllamaDetails(
        format="gguf" if model.engine == "llama" else "",
        family=family,
        families=(family,) if family else (),
        parameter_size=_size(facts.parameters) if facts else "",
        quantization_level=facts.quantisation if facts else "",
    )


def _model_info(model: ModelState, tokenizer: TokenizerInfo | None) -> dict[str, Any]:
    """GGUF's words; the context is the one that this node gives, which is what clients plan with."""
    facts = model.facts
    architecture = (facts.architecture if facts else "") or model.engine
    info: dict[str, Any] = {
        "general.architecture": architecture,
        "general.basename": (facts.name if facts else "") or model.id,
        f"{architecture}.context_length": model.context_length,
    }
    if facts is not None:
        info["general.parameter_count"] = facts.parameters
        info[f"{architecture}.block_count"] = facts.block_count
        info[f"{architecture}.vocab_size"] = facts.vocabulary_size
    if tokenizer is not None and tokenizer.bos_id is not None:
        info["tokenizer.ggml.bos_token_id"] = tokenizer.bos_id
    if tokenizer is not None and tokenizer.eos_id is not None:
        info["tokenizer.ggml.eos_token_id"] = tokenizer.eos_id
    return info


def _parameters(sampling: Sampling) -> str:
    """The model's own defaults, one a line, as a Modelfile names them."""
    defaults = {
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "repeat_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "seed": sampling.seed,
    }
    return "\n".join(f"{name:<30} {value:g}" for name, value in defaults.items() if value is not None)


def _size(parameters: int) -> str:
    """So many weights as people say it: 1.2B, 135M."""
    for unit, size in (("T", 10**12), ("B", 10**9), ("M", 10**6), ("K", 10**3)):
        if parameters >= size:
            return f"{parameters / size:.4g}{unit}"
    return str(parameters) if parameters else ""


_body = msgspec.json.Decoder(OllamaPullBody)


class OllamaPulled(Struct, frozen=True, kw_only=True):
    """One line of a pull; bytes while something is downloaded."""

    status: str
    digest: str | UnsetType = UNSET
    total: int | UnsetType = UNSET
    completed: int | UnsetType = UNSET


def parse_pull(body: bytes) -> tuple[str, bool]:
    """The model that is asked for, and whether its progress is streamed."""
    fields = decode(_body, body)
    return _named(fields), fields.stream is not False


def pull_begun() -> Frame:
    """The first line."""
    return Frame(_encode(OllamaPulled(status="pulling manifest")))


def pull_progress(step: LoadProgress) -> Frame:
    """One step of a load; clients draw one bar for each digest."""
    if step.status != "downloading":
        return Frame(_encode(OllamaPulled(status="loading model")))
    digest = _digest_of(step.model)
    return Frame(
        _encode(
            OllamaPulled(
                status=f"pulling {digest[:12]}",
                digest=f"sha256:{digest}",
                total=step.bytes_total,
                completed=step.bytes_done,
            )
        )
    )


def pull_success() -> Frame:
    """The good end, also all of an answer that is not streamed."""
    return Frame(_encode(OllamaPulled(status="success")))


def pull_failure(error: GanglionError) -> Frame:
    """The bad end."""
    return Frame(encode_error(error))
