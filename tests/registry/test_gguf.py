"""GGUF files as people have them: good ones, broken ones, and ones that lie about their size."""

import random
import struct
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ganglion.core.errors import GanglionError, LoadFailed, ModelNotFound
from ganglion.core.model import ModelFacts
from ganglion.registry.embedded import SMOLLM2, find
from ganglion.registry.gguf import read_facts

UINT32, FLOAT32, STRING, ARRAY = 4, 6, 8, 9
Entry = tuple[str, int, bytes]


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def number(key: str, value: int) -> Entry:
    return key, UINT32, struct.pack("<I", value)


def real(key: str, value: float) -> Entry:
    return key, FLOAT32, struct.pack("<f", value)


def string(key: str, value: str) -> Entry:
    return key, STRING, text(value)


def strings(key: str, values: list[str]) -> Entry:
    return key, ARRAY, struct.pack("<IQ", STRING, len(values)) + b"".join(map(text, values))


def numbers(key: str, values: list[int]) -> Entry:
    return key, ARRAY, struct.pack(f"<IQ{len(values)}I", UINT32, len(values), *values)


def gguf(*extra: Entry, leave_out: str = "", weight_bytes: int = 64) -> bytes:
    """A small model file: two layers, four words, one tensor of 16 floats."""
    added = {key for key, _, _ in extra}
    entries: list[Entry] = [
        string("general.architecture", "llama"),
        string("general.name", "Tiny"),
        number("general.file_type", 15),
        number("llama.block_count", 2),
        number("llama.context_length", 512),
        number("llama.embedding_length", 64),
        number("llama.attention.head_count", 8),
        number("llama.attention.head_count_kv", 2),
        strings("tokenizer.ggml.tokens", ["<s>", "</s>", "a", "b"]),
        number("tokenizer.ggml.bos_token_id", 0),
        number("tokenizer.ggml.eos_token_id", 1),
        string("tokenizer.chat_template", "{{ messages }}"),
    ]
    entries = [entry for entry in entries if entry[0] not in added | {leave_out}] + list(extra)
    metadata = b"".join(text(key) + struct.pack("<I", kind) + value for key, kind, value in entries)
    tensor = text("token_embd.weight") + struct.pack("<IQIQ", 1, 16, 0, 0)
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, len(entries)) + metadata + tensor
    return head + bytes(-len(head) % 32) + bytes(weight_bytes)


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


def mutants(content: bytes, count: int) -> Iterator[bytes]:
    """Truncations, flipped bits and huge counts, the same ones every time."""
    chance = random.Random(20)
    for number in range(count):
        mutant = bytearray(content)
        match number % 3:
            case 0:
                del mutant[chance.randrange(len(mutant)) :]
            case 1:
                for _ in range(chance.randint(1, 8)):
                    mutant[chance.randrange(len(mutant))] ^= 1 << chance.randrange(8)
            case _:
                at = chance.randrange(len(mutant) - 8)
                mutant[at : at + 8] = struct.pack("<Q", chance.choice([2**64 - 1, 2**40, 2**31, 2**20, 0]))
        yield bytes(mutant)


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
    slowest_s = 0.0
    for mutant in mutants(content, count):
        file.write_bytes(mutant)
        began_s = time.process_time()
        try:
            assert isinstance(read_facts(file), ModelFacts)
        except GanglionError as error:
            assert error.message
        slowest_s = max(slowest_s, time.process_time() - began_s)
    assert slowest_s < 0.1


def test_two_thousand_mutants_of_a_small_file_are_read_or_refused(quick_file: Path) -> None:
    check_mutants(quick_file, gguf(), 2000)


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
