"""A safetensors model's own description: its config files and the headers of its weights.

Law: only JSON and a template's text are read, each of bounded size; nothing is unpickled, imported or run,
and no name in them leads out of the model's folder.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta, Struct

from ganglion.core.errors import LoadFailed, ModelNotFound
from ganglion.core.model import ModelFacts
from ganglion.core.sampling import Limits, Sampling, file_bounds, sampling_from
from ganglion.registry.files.capabilities import capabilities, is_encoder
from ganglion.registry.files.parts import parts_of
from ganglion.registry.files.safetensors_header import MalformedSafetensors, WeightsHeader, read_weights

SUFFIX: Final = ".safetensors"
# Real ones: a few KB, with thousands of added tokens 3 MB, an index of 180,000 tensors 20 MB.
_CONFIG_LIMIT: Final = 8 << 20
_INDEX_LIMIT: Final = 32 << 20
_TEMPLATE_LIMIT: Final = 1 << 20
_FILES_LIMIT: Final = 4096

_INDEX_NAME: Final = "model.safetensors.index.json"
_DAMAGED_HINT: Final = "The model is damaged or its download was cut short; download it again."
# Python programs write config.json, and write what JSON has no number for.
_NO_JSON: Final = re.compile(rb"-?\bInfinity\b|\bNaN\b")
_GENERATING: Final = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")

# The bounds of the GGUF reader: a number beyond one is damage, and would plan absurd memory.
_Layers = Annotated[int, Meta(ge=1, le=1 << 14)]
_Width = Annotated[int, Meta(ge=0, le=1 << 20)]
_Length = Annotated[int, Meta(ge=1, le=1 << 31)]


_Kind = TypeVar("_Kind", bound=Struct)


class _Quantised(Struct, frozen=True):
    quant_method: str = ""


class _Language(Struct, frozen=True):
    """The language model's numbers, under the names that its families use."""

    max_position_embeddings: _Length | None = None
    n_positions: _Length | None = None
    n_ctx: _Length | None = None
    num_hidden_layers: _Layers | None = None
    n_layer: _Layers | None = None
    hidden_size: _Width | None = None
    n_embd: _Width | None = None
    num_attention_heads: _Width | None = None
    n_head: _Width | None = None
    num_key_value_heads: _Width | None = None
    head_dim: _Width | None = None
    vocab_size: _Width | None = None

    @property
    def context_length(self) -> int | None:
        return self.max_position_embeddings or self.n_positions or self.n_ctx

    @property
    def block_count(self) -> int | None:
        return self.num_hidden_layers or self.n_layer

    @property
    def kv_values_per_token(self) -> int:
        heads = self.num_attention_heads or self.n_head or 0
        head_length = self.head_dim or ((self.hidden_size or self.n_embd or 0) // heads if heads else 0)
        kv_heads = heads if self.num_key_value_heads is None else self.num_key_value_heads
        return (self.block_count or 0) * kv_heads * head_length * 2


class _Vision(Struct, frozen=True):
    """Its presence means that the model reads images."""


class _Config(_Language, frozen=True):
    """config.json; a model that also sees keeps its language model's numbers in `text_config`."""

    model_type: str = ""
    architectures: tuple[str, ...] | None = None
    text_config: _Language | None = None
    vision_config: _Vision | None = None
    quantization_config: _Quantised | None = None


class _Token(Struct, frozen=True):
    content: str = ""


class _Template(Struct, frozen=True):
    name: str = ""
    template: str = ""


class _TokenizerConfig(Struct, frozen=True):
    chat_template: str | tuple[_Template, ...] | None = None
    bos_token: str | _Token | None = None
    eos_token: str | _Token | None = None


def _file_limits(name: str) -> Limits:
    low, high = file_bounds(name)
    return {"ge": low, "le": high}


class _GenerationConfig(Struct, frozen=True):
    temperature: Annotated[float, Meta(**_file_limits("temperature"))] | None = None
    top_p: Annotated[float, Meta(**_file_limits("top_p"))] | None = None
    top_k: Annotated[int, Meta(**_file_limits("top_k"))] | None = None
    min_p: Annotated[float, Meta(**_file_limits("min_p"))] | None = None
    repetition_penalty: Annotated[float, Meta(**_file_limits("repetition_penalty"))] | None = None


class _Index(Struct, frozen=True):
    weight_map: dict[str, str]


def read_facts(path: Path) -> ModelFacts:
    """The facts of a safetensors file or folder; raises ModelNotFound or LoadFailed."""
    try:
        return _read(path)
    except MalformedSafetensors as error:
        raise LoadFailed(f"{path} is not a safetensors model: {error}.", hint=_DAMAGED_HINT) from error
    except FileNotFoundError as error:
        raise ModelNotFound(str(path), hint=f"There is no such file in {path.parent}.") from error
    except PermissionError as error:
        raise LoadFailed(f"{error.filename or path} may not be read by this user.") from error
    except OSError as error:
        raise LoadFailed(f"{path} could not be read: {error.strerror or error}.") from error


def _read(path: Path) -> ModelFacts:
    path.stat()
    folder = path if path.is_dir() else path.parent
    files = _files_in(folder) if path.is_dir() else parts_of(path)
    missing = [file.name for file in files if not file.exists()]
    if missing:
        raise LoadFailed(
            f"{path} lacks {missing[0]}, one of {len(files)} files.",
            hint=f"Put it into {folder}, or download the model again.",
        )
    content = _content(folder / "config.json", _CONFIG_LIMIT)
    if content is None:
        raise LoadFailed(
            f"{path} has no config.json beside it, which says what its weights are.",
            hint="Download the whole model, not its weights alone.",
        )
    config = _decode("config.json", _NO_JSON.sub(b"null", content), _Config)
    weights = [read_weights(file) for file in files]
    return _facts(path, folder, config, weights)


def _files_in(folder: Path) -> tuple[Path, ...]:
    """The files of the folder's one model: as its index says, else by their names."""
    index = _load(folder / _INDEX_NAME, _INDEX_LIMIT, _Index)
    if index is not None:
        return _files_of(folder, index)
    if (folder / f"model{SUFFIX}").exists():
        return (folder / f"model{SUFFIX}",)
    found = sorted(folder.glob(f"*{SUFFIX}"))
    if not found:
        raise LoadFailed(f"{folder} holds no {SUFFIX} file.", hint="Name a folder that holds a model.")
    files = parts_of(found[0])
    if set(found) - set(files):
        raise LoadFailed(
            f"{folder} holds {len(found)} {SUFFIX} files and no {_INDEX_NAME} says which belong together.",
            hint=f"Name one of them: {', '.join(file.name for file in found[:5])}.",
        )
    return files


def _files_of(folder: Path, index: _Index) -> tuple[Path, ...]:
    names = sorted(set(index.weight_map.values()))
    if not names or len(names) > _FILES_LIMIT:
        raise MalformedSafetensors(f"{_INDEX_NAME} names {len(names)} files")
    for name in names:
        if not name.endswith(SUFFIX) or not name.isprintable() or "/" in name or "\\" in name:
            raise MalformedSafetensors(
                f"{_INDEX_NAME} names {name[:64]!r}, expected {SUFFIX} files beside it"
            )
    return tuple(folder / name for name in names)


def _facts(path: Path, folder: Path, config: _Config, weights: Sequence[WeightsHeader]) -> ModelFacts:
    language = config.text_config or config
    architectures = config.architectures or ()
    architecture = config.model_type or next(iter(architectures), "")
    if not architecture:
        raise MalformedSafetensors("config.json names no architecture")
    tokenizer = _load(folder / "tokenizer_config.json", _CONFIG_LIMIT, _TokenizerConfig) or _TokenizerConfig()
    chat_template = _chat_template(folder, tokenizer)
    is_embedding = is_encoder(architecture) or (folder / "modules.json").exists()
    return ModelFacts(
        path=str(path),
        size_bytes=sum(file.size_bytes for file in weights),
        modified_s=max(file.modified_s for file in weights),
        architecture=architecture,
        name=_name(path),
        # Numbers that a family takes for granted are not in its files.
        context_length=language.context_length or 0,
        block_count=language.block_count or 0,
        kv_values_per_token=language.kv_values_per_token,
        vocabulary_size=language.vocab_size or 0,
        chat_template=chat_template,
        bos_token=_token(tokenizer.bos_token),
        eos_token=_token(tokenizer.eos_token),
        quantisation=_quantisation(config, weights),
        parameters=sum(file.parameters for file in weights),
        capabilities=capabilities(
            chat_template=chat_template,
            is_causal=any(name.endswith(_GENERATING) for name in architectures),
            is_embedding=is_embedding,
            has_vision=config.vision_config is not None,
        ),
        sampling=_sampling(folder),
    )


def _name(path: Path) -> str:
    """The folder's or file's name; in a hub's cache the repository's, since folders there are revisions."""
    if path.parent.name == "snapshots":
        return path.parent.parent.name.rpartition("--")[2]
    return path.name.removesuffix(SUFFIX)


def _quantisation(config: _Config, weights: Sequence[WeightsHeader]) -> str:
    if config.quantization_config is not None and config.quantization_config.quant_method:
        return config.quantization_config.quant_method.upper()
    totals: dict[str, int] = {}
    for file in weights:
        for kind, size_bytes in file.bytes_by_type.items():
            totals[kind] = totals.get(kind, 0) + size_bytes
    return max(totals, key=lambda kind: totals[kind])


def _chat_template(folder: Path, tokenizer: _TokenizerConfig) -> str | None:
    written = _content(folder / "chat_template.jinja", _TEMPLATE_LIMIT)
    if written is not None:
        return written.decode(errors="replace")
    match tokenizer.chat_template:
        case str(template):
            return template
        case None:
            return None
        case templates:
            by_name = {template.name: template.template for template in templates}
            return by_name.get("default") or next(iter(by_name.values()), None)


def _token(token: str | _Token | None) -> str:
    return token.content if isinstance(token, _Token) else token or ""


def _sampling(folder: Path) -> Sampling:
    found = _load(folder / "generation_config.json", _CONFIG_LIMIT, _GenerationConfig) or _GenerationConfig()
    return sampling_from(msgspec.structs.asdict(found))


def _load(file: Path, limit_bytes: int, kind: type[_Kind]) -> _Kind | None:
    """A JSON file as a value; None when there is none."""
    content = _content(file, limit_bytes)
    return None if content is None else _decode(file.name, content, kind)


def _decode(name: str, content: bytes, kind: type[_Kind]) -> _Kind:
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedSafetensors(f"{name}: {error}") from error


def _content(file: Path, limit_bytes: int) -> bytes | None:
    if not file.is_file():
        return None
    if file.stat().st_size > limit_bytes:
        raise MalformedSafetensors(f"{file.name} has more than {limit_bytes >> 20} MiB")
    with file.open("rb", buffering=0) as opened:
        return opened.read(file.stat().st_size)
