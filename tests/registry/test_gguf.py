"""GGUF files as people have them: good ones, broken ones, and ones that lie about their size."""

import struct
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from malformed import measured_memory, mutants, read_all

from ganglion.core.errors import LoadFailed, ModelNotFound
from ganglion.core.model import ModelFacts
from ganglion.registry.files.gguf import read_facts, read_file
from ganglion.registry.files.gguf_reader import GgufReader, MalformedGguf
from ganglion.registry.hub.embedded import SMOLLM2, find
from support.model_files import (
    ARRAY,
    STRING,
    UINT32,
    bare_gguf,
    boolean,
    gguf,
    model,
    number,
    numbers,
    projector,
    real,
    short,
    split,
    split_into,
    string,
    text,
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tiny.gguf"


def read(file: Path, content: bytes) -> ModelFacts:
    file.write_bytes(content)
    return read_facts(file)


def test_a_file_says_what_it_is(file: Path) -> None:
    facts = read(file, gguf())
    assert facts == ModelFacts(
        path=str(file),
        size_bytes=file.stat().st_size,
        modified_s=int(file.stat().st_mtime),
        architecture="llama",
        name="Tiny",
        context_length=512,
        block_count=2,
        kv_values_per_token=2 * 2 * (8 + 8),
        vocabulary_size=4,
        chat_template="{{ messages }}",
        bos_token="<s>",
        eos_token="</s>",
        quantisation="Q4_K_M",
        parameters=16,
        capabilities=("chat", "completion"),
        embedding_length=64,
        block_bytes=(64, 0),
    )


def test_heads_may_differ_by_layer_and_lengths_be_written_out(file: Path) -> None:
    facts = read(
        file,
        gguf(
            numbers("llama.attention.head_count_kv", [4, 0]),
            number("llama.attention.key_length", 32),
            number("llama.attention.value_length", 16),
        ),
    )
    assert facts.kv_values_per_token == 4 * (32 + 16)


def test_without_separate_heads_every_head_has_its_own(file: Path) -> None:
    facts = read(file, gguf(leave_out="llama.attention.head_count_kv"))
    assert facts.kv_values_per_token == 2 * 8 * (8 + 8)


def test_sampling_defaults_are_the_model_s_own(file: Path) -> None:
    facts = read(
        file,
        gguf(
            real("general.sampling.temp", 0.5),
            real("general.sampling.top_p", 0.75),
            number("general.sampling.top_k", 20),
            real("general.sampling.penalty_repeat", 1.25),
        ),
    )
    sampling = facts.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.75, 20)
    assert (sampling.repetition_penalty, sampling.min_p) == (1.25, None)


def test_what_is_not_there_has_a_plain_default(file: Path) -> None:
    assert read(file, gguf(leave_out="general.name")).name == "tiny"
    assert read(file, gguf(leave_out="tokenizer.chat_template")).chat_template is None
    assert read(file, gguf(number("tokenizer.ggml.eos_token_id", 99))).eos_token == ""
    assert read(file, gguf(number("general.file_type", 9999))).quantisation == ""


def test_parameters_are_the_elements_of_all_tensors(file: Path) -> None:
    assert read(file, gguf(tensors=((16,), (4, 8), (2, 2, 2, 2)))).parameters == 16 + 32 + 16


@pytest.mark.parametrize("shape", [(2**40, 2**40), (2**63,), (2**62, 2, 2, 2)])
def test_more_weights_than_can_be_are_refused(file: Path, shape: tuple[int, ...]) -> None:
    # Of an unknown type, so that no size in bytes follows from the shape.
    content = gguf().replace(struct.pack("<IQIQ", 1, 16, 0, 0), tensor_info(shape))
    with pytest.raises(LoadFailed, match="announces"):
        read(file, content)


def tensor_info(shape: tuple[int, ...]) -> bytes:
    return struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 77, 0)


def test_the_memory_of_a_context_is_weights_and_cache(file: Path) -> None:
    facts = read(file, gguf())
    assert facts.kv_bytes(100, 2.0) == 100 * 64 * 2
    assert facts.kv_bytes(3, 18 / 32) == 108
    assert facts.memory_bytes(100, 2.0) == facts.size_bytes + 12800


TOOLS = "{% if tools %}{{ tools | tojson }}{% endif %}{{ messages }}"
CAPABILITIES = {
    "a chat model": (gguf(), ("chat", "completion")),
    "a base model": (gguf(leave_out="tokenizer.chat_template"), ("completion",)),
    "tools": (gguf(string("tokenizer.chat_template", TOOLS)), ("chat", "tools", "completion")),
    "tool calls": (
        gguf(string("tokenizer.chat_template", "{{ message.tool_calls }}")),
        ("chat", "tools", "completion"),
    ),
    "no tools": (gguf(string("tokenizer.chat_template", "{{ toolshed }}")), ("chat", "completion")),
    "think": (
        gguf(string("tokenizer.chat_template", "{{ '<think>' }}")),
        ("chat", "reasoning", "completion"),
    ),
    "brackets": (
        gguf(string("tokenizer.chat_template", "{{ '[THINK]' }}")),
        ("chat", "reasoning", "completion"),
    ),
    "a channel": (
        gguf(string("tokenizer.chat_template", "<|channel|>")),
        ("chat", "reasoning", "completion"),
    ),
    "a switch": (
        gguf(string("tokenizer.chat_template", "{% if enable_thinking %}")),
        ("chat", "reasoning", "completion"),
    ),
    "an encoder": (model("nomic-bert"), ("embeddings",)),
    "an encoder by its mask": (
        model("unheard", boolean("unheard.attention.causal", False), number("unheard.pooling_type", 1)),
        ("embeddings",),
    ),
    "a chat model turned embedder": (
        gguf(number("llama.pooling_type", 3), string("tokenizer.chat_template", TOOLS)),
        ("embeddings", "completion"),
    ),
    "pooling of none": (gguf(number("llama.pooling_type", 0)), ("chat", "completion")),
    "sight by architecture": (model("qwen2vl"), ("vision", "completion")),
    "sight inside": (gguf(number("llama.vision.block_count", 2)), ("chat", "vision", "completion")),
}


@pytest.mark.parametrize(("content", "expected"), CAPABILITIES.values(), ids=CAPABILITIES)
def test_a_file_gives_away_what_its_model_can_do(
    file: Path, content: bytes, expected: tuple[str, ...]
) -> None:
    assert read(file, content).capabilities == expected


def test_a_split_model_is_all_its_parts(tmp_path: Path) -> None:
    files = split_into(tmp_path, "Big", 3)
    files[1].write_bytes(split(3, 2, tensors=((32,), (64,))))
    facts = read_facts(files[0])
    assert facts.size_bytes == sum(file.stat().st_size for file in files)
    assert facts.parameters == 16 + 32 + 64 + 16
    assert facts.path == str(files[0])


def test_a_first_part_may_hold_no_weights_and_no_name(tmp_path: Path) -> None:
    files = split_into(tmp_path, "Big", 2)
    keys = [short("split.no", 0), short("split.count", 2)]
    files[0].write_bytes(gguf(*keys, leave_out="general.name", tensors=()))
    facts = read_facts(files[0])
    assert (facts.parameters, facts.name) == (16, "Big")


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    files = split_into(tmp_path, "Big", 3)
    files[1].unlink()
    with pytest.raises(LoadFailed, match=r"lacks Big-00002-of-00003\.gguf, part 2 of 3") as raised:
        read_facts(files[0])
    assert str(tmp_path) in (raised.value.hint or "")


def test_a_part_that_is_not_what_its_name_says_is_refused(tmp_path: Path) -> None:
    files = split_into(tmp_path, "Big", 3)
    files[2].write_bytes(files[1].read_bytes())
    with pytest.raises(LoadFailed, match="says it is part 2 of 3, expected part 3 of 3"):
        read_facts(files[0])
    files[2].write_bytes(b"GGUF and no more")
    with pytest.raises(LoadFailed, match="00003-of-00003"):
        read_facts(files[0])
    files[2].write_bytes(gguf(short("split.no", 7), short("split.count", 3)))
    with pytest.raises(LoadFailed, match="part 8 of 3"):
        read_facts(files[0])


def test_a_later_part_alone_names_the_first(tmp_path: Path) -> None:
    files = split_into(tmp_path, "Big", 2)
    with pytest.raises(LoadFailed) as raised:
        read_facts(files[1])
    assert files[0].name in (raised.value.hint or "")


def test_a_first_part_under_another_name_says_how_parts_are_named(tmp_path: Path) -> None:
    renamed = split_into(tmp_path, "Big", 2)[0].rename(tmp_path / "big.gguf")
    with pytest.raises(LoadFailed) as raised:
        read_facts(renamed)
    assert "-00001-of-00002.gguf" in (raised.value.hint or "")


@pytest.mark.parametrize(
    "content", [projector(), bare_gguf([string("general.type", "adapter")])], ids=["projector", "adapter"]
)
def test_what_belongs_to_a_model_is_none(file: Path, content: bytes) -> None:
    with pytest.raises(LoadFailed, match="not a model of its own") as raised:
        read(file, content)
    assert "name that model" in (raised.value.hint or "")
    assert read_file(file).kind == "companion"


def test_text_that_is_very_long_is_not_read(file: Path) -> None:
    assert read(file, gguf(string("tokenizer.huggingface.json", "x" * 2_000_000))).name == "Tiny"


BROKEN = {
    "another kind of file": b"PK\x03\x04 and so on, a zip file",
    "four letters": b"GGUF",
    "a version of the future": b"GGUF" + struct.pack("<IQQ", 9, 0, 0),
    "big-endian": b"GGUF" + struct.pack(">IQQ", 3, 0, 0),
    "as many keys as there are": b"GGUF" + struct.pack("<IQQ", 3, 0, 2**64 - 1) + bytes(64),
    "as many tensors as there are": b"GGUF" + struct.pack("<IQQ", 3, 2**63, 1) + bytes(64),
    "no architecture": gguf(leave_out="general.architecture"),
    "no layers": gguf(leave_out="llama.block_count"),
    "layers beyond measure": gguf(number("llama.block_count", 2**32 - 1)),
    "no context": gguf(number("llama.context_length", 0)),
    "too few heads": gguf(numbers("llama.attention.head_count_kv", [1])),
    "a temperature that is no number": gguf(real("general.sampling.temp", float("nan"))),
    "a huge string": gguf(("huge", STRING, struct.pack("<Q", 2**62))),
    "a huge array": gguf(("huge", ARRAY, struct.pack("<IQ", UINT32, 2**61))),
    "an array of arrays": gguf(("deep", ARRAY, struct.pack("<IQ", ARRAY, 1))),
    "an unknown type": gguf(("odd", 77, b"")),
    "a key twice": gguf(number("same", 1), number("same", 2)),
    "an alignment of three": gguf(number("general.alignment", 3)),
    "weights cut off": gguf()[:-1],
    "a header cut off": gguf()[:200],
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_a_broken_file_is_refused_with_a_reason(file: Path, content: bytes) -> None:
    with pytest.raises(LoadFailed) as raised:
        read(file, content)
    assert str(file) in raised.value.message
    assert raised.value.hint


def test_a_missing_file_a_folder_and_an_empty_file_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound) as missing:
        read_facts(tmp_path / "missing.gguf")
    assert str(tmp_path) in (missing.value.hint or "")
    (tmp_path / "some.gguf").write_bytes(b"")
    with pytest.raises(LoadFailed, match="is empty"):
        read_facts(tmp_path / "some.gguf")
    with pytest.raises(LoadFailed, match="folder") as folder:
        read_facts(tmp_path)
    assert "some.gguf" in (folder.value.hint or "")
    with pytest.raises(LoadFailed, match="regular"):
        read_facts(Path("/dev/zero"))
    with pytest.raises(LoadFailed):
        read_facts(tmp_path / "some.gguf" / "below.gguf")


def test_a_file_that_may_not_be_read_says_so(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, mode: str, buffering: int) -> None:
        raise PermissionError(13, "Permission denied")

    file.write_bytes(gguf())
    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(LoadFailed, match="may not be read") as raised:
        read_facts(file)
    assert "chmod" in (raised.value.hint or "")


def embedded_file() -> Path:
    found = find(SMOLLM2, Path("nowhere"))
    if found is None:
        pytest.skip("the embedded model is not installed")
    return found.path


def test_the_embedded_model_is_read_quickly_and_whole() -> None:
    path = embedded_file()
    read_facts(path)
    began_s = time.process_time()
    facts = read_facts(path)
    assert time.process_time() - began_s < 0.06
    assert (facts.architecture, facts.block_count, facts.context_length) == ("llama", 30, 8192)
    assert facts.kv_values_per_token == 30 * 3 * (64 + 64)
    assert (facts.vocabulary_size, facts.quantisation) == (49152, "Q4_1")
    assert (facts.bos_token, facts.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert "<|im_start|>" in (facts.chat_template or "")


@pytest.fixture
def quick_file(file: Path) -> Iterator[Path]:
    """In memory where the system has such a folder: thousands of writes to a disk take long."""
    memory = Path("/dev/shm")
    if not memory.is_dir():
        yield file
        return
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        yield Path(folder) / "mutant.gguf"


def check_mutants(file: Path, content: bytes, count: int) -> None:
    read_all(file, mutants(content, count), lambda: read_facts(file), is_traced=len(content) < 4096)


def test_two_thousand_mutants_of_a_small_file_are_read_or_refused(quick_file: Path) -> None:
    check_mutants(quick_file, gguf(), 2000)


def test_a_thousand_mutants_of_a_part_with_everything_in_it_are_read_or_refused(quick_file: Path) -> None:
    everything = gguf(
        numbers("llama.attention.head_count_kv", [4, 0]),
        number("llama.pooling_type", 1),
        real("general.sampling.temp", 0.5),
        short("split.no", 0),
        short("split.count", 2),
        tensors=((16,), (4, 8), (2, 2, 2, 2)),
    )
    first, second = split_into(quick_file.parent, "mutant", 2)
    read_all(first, mutants(everything, 500), lambda: read_facts(first))
    first.write_bytes(everything)
    assert read_facts(first).parameters == 16 + 32 + 16 + 16
    read_all(second, mutants(split(2, 2), 500), lambda: read_facts(first))


def test_mutants_of_the_embedded_model_s_head_are_read_or_refused(quick_file: Path) -> None:
    with embedded_file().open("rb") as real_file:
        head = real_file.read(2 << 20)
    # Most of the head is vocabulary; what stands before and after it is hit often enough in both halves.
    check_mutants(quick_file, head[: 64 << 10], 1000)
    check_mutants(quick_file, head, 300)


def test_a_header_that_sends_the_reader_through_zeros_ends_soon(file: Path) -> None:
    file.write_bytes(
        b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + text("k") + struct.pack("<IIQ", ARRAY, STRING, 1_999_999)
    )
    with file.open("r+b") as sparse:
        sparse.truncate(1 << 32)
    began_s = time.process_time()
    with pytest.raises(LoadFailed):
        read_facts(file)
    assert time.process_time() - began_s < 1.0


def test_text_and_arrays_that_a_huge_file_announces_are_never_allocated(file: Path) -> None:
    huge = text("k") + struct.pack("<IQ", STRING, 3 << 30)
    file.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 1, 2) + huge)
    with file.open("r+b") as sparse:
        sparse.truncate(4 << 30)
    with measured_memory() as peak_bytes:
        with pytest.raises(LoadFailed):
            read_facts(file)
        assert peak_bytes() < 4 << 20


def test_a_header_that_leads_through_the_whole_of_a_huge_file_is_left(file: Path) -> None:
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + text("k") + struct.pack("<IIQ", ARRAY, STRING, 100_000)
    with file.open("wb") as sparse:
        sparse.write(head)
        for index in range(20_000):
            sparse.seek(len(head) + (index << 13))
            sparse.write(struct.pack("<Q", (1 << 13) - 8))
        sparse.truncate(1 << 40)
    began_s = time.process_time()
    with pytest.raises(LoadFailed, match="goes on beyond 64 MiB"):
        read_facts(file)
    assert time.process_time() - began_s < 1.0


def test_a_file_that_is_cut_while_it_is_read_is_refused(file: Path) -> None:
    content = gguf()
    file.write_bytes(content[:100])
    with file.open("rb", buffering=0) as opened, pytest.raises(MalformedGguf, match="became shorter"):
        GgufReader(opened, len(content)).header()
