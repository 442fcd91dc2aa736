"""`models.yaml` as an operator writes it, and as one gets it wrong."""

import math
import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganglion.core.device_layout import DeviceLayout
from ganglion.core.errors import GanglionError, InvalidValue, UnknownParameter
from ganglion.core.sampling import Sampling
from ganglion.registry.naming.manifest import ManifestEntry, ModelsManifest, read_manifest
from ganglion.registry.naming.names import HubId


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path.resolve() / "models.yaml"


def read(file: Path, text: str) -> ModelsManifest:
    file.write_text(text)
    return read_manifest(file)


def entry(file: Path, text: str) -> ManifestEntry:
    (only,) = read(file, text).entries
    return only


def test_a_missing_or_empty_file_is_an_empty_manifest(file: Path) -> None:
    assert read_manifest(file) == ModelsManifest()
    for text in ("", "# nothing yet\n", "---\n", "models:\n", "models: {}\n"):
        assert read(file, text) == ModelsManifest()


def test_entries_stand_under_models_and_at_the_top(file: Path) -> None:
    manifest = read(
        file,
        "models:\n"
        "  fast: ./tiny.gguf\n"
        "  ' Big ': org/Repo-GGUF:q8_0\n"
        "Absolute: /data/x.gguf\n"
        "repo: org/repo\n",
    )
    assert manifest.entries == (
        ManifestEntry("fast", path=file.parent / "tiny.gguf"),
        ManifestEntry("big", hub=HubId("org/Repo-GGUF", "Q8_0"), quant="Q8_0"),
        ManifestEntry("absolute", path=Path("/data/x.gguf")),
        ManifestEntry("repo", hub=HubId("org/repo")),
    )


def test_a_table_says_everything(file: Path) -> None:
    text = """
    fast:
      path: sub/tiny.gguf
      engine: llama
      quant: q4_k_m
      Context_Length: 4096
      kv_tokens: 8192
      parallel: 4
      pinned: true
      priority: -3
      keep_alive: 5m
      aliases: [gpt-4o, "*", Fast, GPT-4O]
      sampling: {temperature: 0, top_p: 0.9, top_k: 40, min_p: 0.05, repetition_penalty: 1.1}
      chat_template: chat.jinja
      gpu_layers: 0
      tensor_parallel: 2
      pipeline_parallel: 3
      data_parallel: 4
      devices: [5, "cuda:1"]
      executor: ray
    """
    assert entry(file, text) == ManifestEntry(
        key="fast",
        path=file.parent / "sub" / "tiny.gguf",
        quant="Q4_K_M",
        engine="llama",
        context_length=4096,
        kv_tokens=8192,
        parallel=4,
        is_pinned=True,
        priority=-3,
        keep_alive_s=300.0,
        aliases=("gpt-4o", "*"),
        sampling=Sampling(temperature=0, top_p=0.9, top_k=40, min_p=0.05, repetition_penalty=1.1),
        chat_template=str(file.parent / "chat.jinja"),
        gpu_layers=0,
        layout=DeviceLayout(2, 3, 4, ("1", "5"), "ray"),
    )


def test_a_hub_id_and_its_quantisation_may_stand_apart(file: Path) -> None:
    assert entry(file, "m: {hub: org/repo, quant: Q8_0}").hub == HubId("org/repo", "Q8_0")
    assert entry(file, "m: {hub: 'org/repo:q8_0', quant: Q8_0}").hub == HubId("org/repo", "Q8_0")
    assert entry(file, "m: {hub: org/repo}").hub == HubId("org/repo")


def test_a_template_that_is_written_out_is_no_path(file: Path) -> None:
    assert entry(file, "m: {chat_template: '{{ x }}'}").chat_template == "{{ x }}"


def test_a_key_is_the_text_that_was_written(file: Path) -> None:
    keys = [entry.key for entry in read(file, "no: ./a.gguf\n1.5: ./b.gguf\n2024-01-01: ./c.gguf\n").entries]
    assert keys == ["no", "1.5", "2024-01-01"]


def test_a_byte_order_mark_and_other_scripts_are_read(file: Path) -> None:
    file.write_bytes("\ufeffЖЯ: ./a.gguf\n".encode())
    assert read_manifest(file).entries[0].key == "жя"


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("90", 90),
        ("1.5", 1.5),
        ("0", 0),
        ("5m", 300),
        ("2h", 7200),
        ("'30 s'", 30),
        ("1d", 86400),
        ("Forever", math.inf),
    ],
)
def test_keep_alive_is_written_in_seconds_or_with_a_unit(file: Path, written: str, seconds: float) -> None:
    assert entry(file, f"m: {{keep_alive: {written}}}").keep_alive_s == seconds


@pytest.mark.parametrize(
    ("text", "key", "hint"),
    [
        ("fast: {contxt_length: 1}", "fast.contxt_length", "Did you mean fast.context_length?"),
        ("models: {fast: {alias: x}}", "models.fast.alias", "Did you mean models.fast.aliases?"),
        ("fast: {sampling: {temprature: 1}}", "fast.sampling.temprature", "fast.sampling.temperature?"),
        ("fast: {xyz: 1}", "fast.xyz", "There are: path, hub, "),
        ("model: {fast: ./x.gguf}", "model.fast", "Did you mean models?"),
        ("fast: {<<: {pinned: true}}", "fast.<<", "There are: "),
    ],
)
def test_a_typo_names_the_file_the_key_and_the_nearest_right_one(
    file: Path, text: str, key: str, hint: str
) -> None:
    with pytest.raises(UnknownParameter) as raised:
        read(file, text)
    assert raised.value.message == f"Unknown key {key} in {file}."
    assert raised.value.param == key
    assert hint in (raised.value.hint or "")


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("fast:", "fast"),
        ("fast: 7", "fast"),
        ("fast: [./a.gguf]", "fast"),
        ("fast: tiny", "fast"),
        ("fast: ''", "fast"),
        ("fast: ~nobody-of-this-name/x.gguf", "fast"),
        ('fast: "./a\\0.gguf"', "fast"),
        ("models: [a]", "models"),
        ("models: ./x.gguf", "models"),
        ("fast: {path: ./a.gguf, hub: org/repo}", "fast"),
        ("fast: {path: 7}", "fast.path"),
        ("fast: {hub: tiny}", "fast.hub"),
        ("fast: {hub: org/repo/file}", "fast.hub"),
        ("fast: {hub: 'org/repo:Q4_0', quant: Q8_0}", "fast.quant"),
        ("fast: {quant: 'a/b'}", "fast.quant"),
        ("fast: {context_length: 0}", "fast.context_length"),
        ("fast: {context_length: 4096.5}", "fast.context_length"),
        ("fast: {context_length: '4096'}", "fast.context_length"),
        ("fast: {context_length: true}", "fast.context_length"),
        (f"fast: {{context_length: {10**400}}}", "fast.context_length"),
        (f"fast: {{sampling: {{temperature: {10**400}}}}}", "fast.sampling.temperature"),
        ("fast: {parallel: -1}", "fast.parallel"),
        ("fast: {pinned: 1}", "fast.pinned"),
        ("fast: {priority: high}", "fast.priority"),
        ("fast: {keep_alive: -1}", "fast.keep_alive"),
        ("fast: {keep_alive: soon}", "fast.keep_alive"),
        ("fast: {keep_alive: .inf}", "fast.keep_alive"),
        ("fast: {keep_alive: .nan}", "fast.keep_alive"),
        ("fast: {keep_alive: true}", "fast.keep_alive"),
        ("fast: {aliases: {a: b}}", "fast.aliases"),
        ("fast: {aliases: [1]}", "fast.aliases"),
        ("fast: {aliases: ['../x']}", "fast.aliases"),
        ("fast: {sampling: hot}", "fast.sampling"),
        ("fast: {sampling: {temperature: .nan}}", "fast.sampling.temperature"),
        ("fast: {sampling: {temperature: -1}}", "fast.sampling.temperature"),
        ("fast: {sampling: {top_p: 2}}", "fast.sampling.top_p"),
        ("fast: {gpu_layers: 1.5}", "fast.gpu_layers"),
        ("fast: {tensor_parallel: 0}", "fast.tensor_parallel"),
        ("fast: {tensor_parallel: 1025}", "fast.tensor_parallel"),
        ("fast: {pipeline_parallel: two}", "fast.pipeline_parallel"),
        ("fast: {data_parallel: 1.5}", "fast.data_parallel"),
        ("fast: {devices: 0}", "fast.devices"),
        ("fast: {devices: []}", "fast.devices"),
        ("fast: {devices: [0, 0]}", "fast.devices"),
        ("fast: {devices: [-1]}", "fast.devices"),
        ("fast: {executor: slurm}", "fast.executor"),
        ("../x: ./a.gguf", "../x"),
        ("'': ./a.gguf", ""),
        ("'*': ./a.gguf", "*"),
        ("'a\\b': ./a.gguf", "a\\b"),
    ],
)
def test_a_wrong_value_names_the_file_and_the_key(file: Path, text: str, key: str) -> None:
    with pytest.raises(InvalidValue) as raised:
        read(file, text)
    assert raised.value.param == key
    assert str(file) in raised.value.message
    assert key in raised.value.message


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("a: ./a.gguf\nb: ./b.gguf\na: ./c.gguf\n", "'a' stands twice in {file}, on lines 1 and 3"),
        ("Fast: ./a.gguf\n' fast': ./b.gguf\n", "'fast' stands twice"),
        ("models: {fast: ./a.gguf}\nFAST: ./b.gguf\n", "'fast' stands twice in {file}: under models and"),
        ("models: {a: ./a.gguf}\nmodels: {b: ./b.gguf}\n", "'models' stands twice"),
        ("a: {pinned: true, Pinned: false}", "'pinned' stands twice"),
        ("a: {aliases: [B]}\nb: ./b.gguf\n", "alias 'B' of a in {file} is already the name of a model"),
        ("a: {aliases: [x]}\nb: {aliases: [X]}\n", "alias 'X' of b in {file} is already an alias of a"),
        ("a: {aliases: ['*']}\nb: {aliases: ['*']}\n", "alias '*' of b"),
    ],
)
def test_what_stands_twice_is_named(file: Path, text: str, named: str) -> None:
    with pytest.raises(InvalidValue) as raised:
        read(file, text)
    assert named.format(file=file) in raised.value.message


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (BOMB.encode(), "alias *a on line 2"),
        (b"a: &a [*a]\n", "alias *a on line 1"),
        (b"base: &b {pinned: true}\nfast: {<<: *b}\n", "alias *b on line 2"),
        (b"[" * 100_000, "nested deeper"),
        (b"a: " + b"{a: " * 5_000, "nested deeper"),
        (b"\n".join(b" " * depth + b"a:" for depth in range(500)), "nested deeper"),
        (b"a: ./a.gguf\n" * 30_000, "larger than 262144 bytes"),
        (b"m\xffdel: ./a.gguf\n", "not UTF-8"),
        ("m: ./a.gguf\n".encode("utf-16"), "not UTF-8"),
        (b"a: \x00", "not YAML"),
        (b"a: [1, 2\nb: 3\n", "not YAML"),
        (b"a: ./a.gguf\n---\nb: ./b.gguf\n", "not YAML"),
        (b"a: b: c\n", "not YAML"),
        (b"a: \t- b\n\tc", "not YAML"),
        (b"? [a, b]\n: ./a.gguf\n", "key on line 1 that is not text"),
        (b"a: !!python/object/apply:os.system ['true']\n", "tag"),
        (b"a: !!python/name:os.system ''\n", "not YAML"),
        (b"a: !!set {x, y}\n", "tag"),
        (b"a: " + b"9" * 5_000, "cannot be read"),
        (b"a: 2024-02-31\n", "cannot be read"),
        (b"- a\n- b\n", "expected a map"),
        (b"just words\n", "expected a map"),
    ],
    ids=lambda value: ascii(value)[:30],
)
def test_what_is_no_manifest_is_refused_at_once(file: Path, data: bytes, said: str) -> None:
    file.write_bytes(data)
    began_s = time.monotonic()
    with pytest.raises(InvalidValue) as raised:
        read_manifest(file)
    assert time.monotonic() - began_s < 5
    assert said in raised.value.message
    assert str(file) in raised.value.message
    assert len(raised.value.message) < 1000


def test_what_is_no_file_is_refused_without_waiting_for_it(file: Path) -> None:
    file.mkdir()
    with pytest.raises(InvalidValue, match="not a regular file"):
        read_manifest(file)
    file.rmdir()
    os.mkfifo(file)
    with pytest.raises(InvalidValue, match="not a regular file"):
        read_manifest(file)


TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    *("models", "path", "hub", "quant", "aliases", "sampling", "top_k", "keep_alive"),
                    *("devices", "tensor_parallel", "executor", "x", "a/b"),
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(tree=TREES)
def test_any_tree_is_a_manifest_or_a_typed_error(
    tmp_path_factory: pytest.TempPathFactory, tree: object
) -> None:
    import yaml

    file = tmp_path_factory.getbasetemp() / "any.yaml"
    file.write_text(yaml.safe_dump(tree, allow_unicode=True), encoding="utf-8", errors="replace")
    try:
        manifest = read_manifest(file)
    except GanglionError as error:
        assert isinstance(error, InvalidValue | UnknownParameter)
        return
    assert len({entry.key for entry in manifest.entries}) == len(manifest.entries)


@given(data=st.binary(max_size=64))
def test_any_bytes_are_a_manifest_or_a_typed_error(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    file = tmp_path_factory.getbasetemp() / "bytes.yaml"
    file.write_bytes(data)
    try:
        read_manifest(file)
    except GanglionError as error:
        assert isinstance(error, InvalidValue | UnknownParameter)
