"""A safetensors model's own description: its config files and the headers of its weights.

Law: only JSON and a template's text are read, each of bounded size; nothing is unpickled, imported or run,
and no name in them leads out of the model's folder.
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta, Struct

from ganglion.core.errors import LoadFailed, ModelNotFound
from ganglion.core.model import ModelFacts, Pooling
from ganglion.core.sampling import Limits, Sampling, file_bounds, sampling_from
from ganglion.registry.files.capabilities import capabilities, is_encoder
from ganglion.registry.files.checkpoint_config import CheckpointConfig
from ganglion.registry.files.checkpoint_files import (
    CONFIG,
    INDEX,
    SUFFIX,
    checkpoint_of,
    is_weights,
    pickles,
)
from ganglion.registry.files.parts import parts_of
from ganglion.registry.files.safetensors_header import MalformedSafetensors, WeightsHeader, read_weights

# Real ones: a few KB, with thousands of added tokens 3 MB, an index of 180,000 tensors 20 MB.
_CONFIG_LIMIT: Final = 8 << 20
_INDEX_LIMIT: Final = 32 << 20
_TEMPLATE_LIMIT: Final = 1 << 20
_FILES_LIMIT: Final = 4096

_DAMAGED_HINT: Final = "The model is damaged or its download was cut short; download it again."
# Python programs write config.json, and write what JSON has no number for.
_NO_JSON: Final = re.compile(rb"-?\bInfinity\b|\bNaN\b")
_POOLING: Final = "1_Pooling/config.json"

_Kind = TypeVar("_Kind", bound=Struct)


class _Token(Struct, frozen=True):
    content: str = ""


class _Template(Struct, frozen=True):
    name: str = ""
    template: str = ""


class _SpecialTokens(Struct, frozen=True):
    """tokenizer_config.json, special_tokens_map.json, or chat_template.json: each has some of it."""

    chat_template: str | tuple[_Template, ...] | None = None
    bos_token: str | _Token | None = None
    eos_token: str | _Token | None = None


class _AutoMap(Struct, frozen=True):
    auto_map: dict[str, object] | None = None


class _PoolingConfig(Struct, frozen=True):
    pooling_mode_cls_token: bool = False
    pooling_mode_mean_tokens: bool = False
    pooling_mode_lasttoken: bool = False


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


def checkpoint_paths(folder: Path) -> tuple[Path, ...]:
    """The files of the checkpoint in a folder that are there, weights last."""
    found = checkpoint_of(path.relative_to(folder).as_posix() for path in _listed(folder))
    if found is None:
        return ()
    weights = found.weights
    with suppress(LoadFailed, MalformedSafetensors):  # said by whoever reads it
        weights = tuple(file.name for file in _files_in(folder) if file.is_file())
    return tuple(folder / name for name in (*found.beside, *weights))


CODE_CONFIGS: Final = (CONFIG, "tokenizer_config.json")
"""The files that may name code in their `auto_map`."""


def code_of(folder: Path) -> tuple[str, ...]:
    """The code that a checkpoint wants to be run with, as `auto_map` names it; raises LoadFailed."""
    found = (name for each in CODE_CONFIGS for name in auto_map_of(folder / each))
    return tuple(dict.fromkeys(found))


def auto_map_of(file: Path) -> tuple[str, ...]:
    """The code that one of `CODE_CONFIGS` names; raises LoadFailed where it is damaged."""
    try:
        content = _content(file, _CONFIG_LIMIT)
        if content is None:
            return ()
        found = _decode(file.name, _NO_JSON.sub(b"null", content), _AutoMap).auto_map or {}
    except MalformedSafetensors as error:
        raise LoadFailed(f"{file.parent} is not a safetensors model: {error}.", hint=_DAMAGED_HINT) from error
    except OSError as error:
        raise LoadFailed(f"{file} could not be read: {error.strerror or error}.") from error
    return tuple(name[:99] for name in _names_in(list(found.values())))


def refuse_code(model: str, code: Sequence[str]) -> None:
    """Raise LoadFailed where a checkpoint wants to be run with code of its own."""
    if code:
        raise LoadFailed(
            f"{model} runs code of its own: {', '.join(code[:5])} (auto_map in its config).",
            hint="It can do whatever this user can; if you trust it, engine.vllm.trust_remote_code = true.",
        )


def _names_in(values: Sequence[object]) -> list[str]:
    """The names in an `auto_map`: one for each class, or two for a slow and a fast tokenizer."""
    names: list[str] = []
    for value in values:
        if isinstance(value, str):
            names.append(value)
        elif isinstance(value, list):
            names += [name for name in value if isinstance(name, str)]
    return names


def _listed(folder: Path) -> list[Path]:
    inside = [path for path in folder.iterdir() if path.is_dir() and not path.is_symlink()]
    return [*folder.iterdir(), *(path for each in inside[:_FILES_LIMIT] for path in each.iterdir())]


def _read(path: Path) -> ModelFacts:
    path.stat()
    folder = path if path.is_dir() else path.parent
    files = _files_in(folder) if path.is_dir() else parts_of(path)
    missing = [file.name for file in files if not file.exists()]
    if missing:
        raise LoadFailed(
            f"{path} is incomplete: it lacks {missing[0]}, one of {len(files)} files.",
            hint=f"Put it into {folder}, or download the model again.",
        )
    config = _config(folder)
    if config is None:
        raise LoadFailed(
            f"{path} has no config.json beside it, which says what its weights are.",
            hint="Download the whole model, not its weights alone.",
        )
    weights = [read_weights(file) for file in files]
    return _facts(path, folder, config, weights)


def _config(folder: Path) -> CheckpointConfig | None:
    content = _content(folder / CONFIG, _CONFIG_LIMIT)
    return None if content is None else _decode(CONFIG, _NO_JSON.sub(b"null", content), CheckpointConfig)


def _files_in(folder: Path) -> tuple[Path, ...]:
    """The files of the folder's one model: as its index says, else by their names."""
    index = _load(folder / INDEX, _INDEX_LIMIT, _Index)
    if index is not None:
        return _files_of(folder, index)
    if (folder / f"model{SUFFIX}").exists():
        return (folder / f"model{SUFFIX}",)
    found = sorted(file for file in folder.glob(f"*{SUFFIX}") if is_weights(file.name))
    if not found:
        raise _no_weights(folder)
    files = parts_of(found[0])
    if set(found) - set(files):
        raise LoadFailed(
            f"{folder} holds {len(found)} {SUFFIX} files and no {INDEX} says which belong together.",
            hint=f"Name one of them: {', '.join(file.name for file in found[:5])}.",
        )
    return files


def _no_weights(folder: Path) -> LoadFailed:
    names = [path.name for path in folder.iterdir()]
    if found := pickles(names):
        return LoadFailed(
            f"{folder} holds its weights as pickle ({found[0]}), which can run code when it is read.",
            hint=f"Get the model as {SUFFIX}; most repositories have it.",
        )
    if gguf := sorted(name for name in names if name.casefold().endswith(".gguf"))[:5]:
        return LoadFailed(
            f"{folder} is a folder, expected a GGUF file.", hint=f"Name one of its files: {', '.join(gguf)}."
        )
    if CONFIG in names:
        return LoadFailed(
            f"{folder} is incomplete: it has a {CONFIG} and no weights.", hint="Download the model again."
        )
    return LoadFailed(
        f"{folder} holds no model: neither a GGUF file nor a {CONFIG} with {SUFFIX} files.",
        hint="Name a GGUF file, or the folder of a Hugging Face checkpoint.",
    )


def _files_of(folder: Path, index: _Index) -> tuple[Path, ...]:
    names = sorted(set(index.weight_map.values()))
    if not names or len(names) > _FILES_LIMIT:
        raise MalformedSafetensors(f"{INDEX} names {len(names)} files")
    for name in names:
        if not name.endswith(SUFFIX) or not name.isprintable() or "/" in name or "\\" in name:
            raise MalformedSafetensors(f"{INDEX} names {name[:64]!r}, expected {SUFFIX} files beside it")
    return tuple(folder / name for name in names)


def _facts(
    path: Path, folder: Path, config: CheckpointConfig, weights: Sequence[WeightsHeader]
) -> ModelFacts:
    if not config.architecture:
        raise MalformedSafetensors("config.json names no architecture")
    if config.quantization is not None and config.quantization.bits is not None:
        raise LoadFailed(
            f"{path} is quantised for MLX, which no engine here reads.",
            hint="Get the model unquantised, or as a GGUF file.",
        )
    language = config.language
    tokenizer = _load(folder / "tokenizer_config.json", _CONFIG_LIMIT, _SpecialTokens) or _SpecialTokens()
    special = _load(folder / "special_tokens_map.json", _CONFIG_LIMIT, _SpecialTokens) or _SpecialTokens()
    chat_template = _chat_template(folder, tokenizer)
    is_embedding = is_encoder(config.architecture) or (folder / "modules.json").exists()
    return ModelFacts(
        path=str(path),
        size_bytes=sum(file.size_bytes for file in weights),
        modified_s=max(file.modified_s for file in weights),
        architecture=config.architecture,
        name=_name(path),
        # Numbers that a family takes for granted are not in its files.
        context_length=language.context_length,
        block_count=language.block_count,
        kv_values_per_token=language.kv_values_per_token,
        vocabulary_size=language.vocab_size or 0,
        chat_template=chat_template,
        bos_token=_token(tokenizer.bos_token or special.bos_token),
        eos_token=_token(tokenizer.eos_token or special.eos_token),
        quantisation=_quantisation(config, weights),
        parameters=sum(file.parameters for file in weights),
        capabilities=capabilities(
            chat_template=chat_template,
            is_causal=config.is_causal,
            is_embedding=is_embedding or config.is_reranker,
            has_vision=config.vision_config is not None,
        ),
        sampling=_sampling(folder),
        pooling="rank" if config.is_reranker else _pooling(folder),
        embedding_length=language.width,
    )


def _name(path: Path) -> str:
    """The folder's or file's name; in a hub's cache the repository's, since folders there are revisions."""
    if path.parent.name == "snapshots":
        return path.parent.parent.name.rpartition("--")[2]
    return path.name.removesuffix(SUFFIX)


def _quantisation(config: CheckpointConfig, weights: Sequence[WeightsHeader]) -> str:
    if config.quantization_config is not None and config.quantization_config.name:
        return config.quantization_config.name
    totals: dict[str, int] = {}
    for file in weights:
        for kind, size_bytes in file.bytes_by_type.items():
            totals[kind] = totals.get(kind, 0) + size_bytes
    return max(totals, key=lambda kind: totals[kind])


def _chat_template(folder: Path, tokenizer: _SpecialTokens) -> str | None:
    """A file of its own, else the tokenizer's, else the processor's; of several the one called default."""
    written = _content(folder / "chat_template.jinja", _TEMPLATE_LIMIT)
    if written is not None:
        return written.decode(errors="replace")
    processor = _load(folder / "chat_template.json", _CONFIG_LIMIT, _SpecialTokens) or _SpecialTokens()
    match tokenizer.chat_template or processor.chat_template:
        case str(template):
            return template
        case None:
            return None
        case templates:
            by_name = {template.name: template.template for template in templates}
            return by_name.get("default") or next(iter(by_name.values()), None)


def _pooling(folder: Path) -> Pooling | None:
    if (folder / "1_Pooling").is_symlink():  # it may lead anywhere
        return None
    found = _load(folder / _POOLING, _CONFIG_LIMIT, _PoolingConfig) or _PoolingConfig()
    if found.pooling_mode_lasttoken:
        return "last"
    if found.pooling_mode_cls_token:
        return "cls"
    return "mean" if found.pooling_mode_mean_tokens else None


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
