"""Names that come over a wire, and those that an operator writes."""

import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganglion.core.errors import ModelNotFound
from ganglion.registry.naming.names import HubId, ModelRef, fold, is_path, operator_path, real_file
from support.hostile_names import HOSTILE, hostile_names


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_a_hostile_name_is_an_unknown_model(text: str) -> None:
    with pytest.raises(ModelNotFound) as raised:
        ModelRef.parse(text)
    assert raised.value.status == 404
    assert raised.value.message.isprintable()
    assert len(raised.value.message) < 300
    assert raised.value.hint is None


@pytest.mark.parametrize(
    "text",
    [
        "smollm2",
        "smollm2:135m",
        "org/repo",
        "org/repo:Q4_K_M",
        "hf.co/org/repo-GGUF:Q4_K_M",
        "Qwen3-4B-Q4_K_M.gguf",
        "My Model (final) v1.0",
        "gpt-4o@2024+x",
        "модель",
        "模型/千问",
        "a..b",
        "...x",
        "*",
        "x#2",
        "a" * 200,
    ],
)
def test_an_honest_name_stays_as_it_is(text: str) -> None:
    assert ModelRef.parse(text).text == text


def test_names_are_trimmed_and_composed() -> None:
    assert ModelRef.parse("  caf\u0065\u0301\t").text == "caf\u00e9"


@pytest.mark.parametrize(
    ("text", "base", "tag"),
    [
        ("llama", "llama", None),
        ("llama:8b", "llama", "8b"),
        ("org/repo:Q8_0", "org/repo", "Q8_0"),
        ("one:two:three", "one:two", "three"),
        ("host:5000/model", "host:5000/model", None),
    ],
)
def test_a_tag_follows_the_last_colon(text: str, base: str, tag: str | None) -> None:
    assert (ModelRef.parse(text).base, ModelRef.parse(text).tag) == (base, tag)


@given(st.text(alphabet=st.characters(), max_size=300))
def test_any_text_is_a_clean_name_or_an_unknown_model(text: str) -> None:
    try:
        name = ModelRef.parse(text).text
    except ModelNotFound as error:
        assert error.message.isprintable()
        return
    assert 0 < len(name) <= 200
    assert name.isprintable()
    assert unicodedata.is_normalized("NFC", name)
    assert ModelRef.parse(name).text == name
    assert not {"\\", "\0", "%"} & set(name)
    assert not Path(name).is_absolute()
    for form in ("NFC", "NFKC"):
        assert ".." not in unicodedata.normalize(form, name).split("/")
    assert Path("/root", name).resolve().is_relative_to("/root")


@pytest.mark.parametrize(
    ("text", "hub"),
    [
        ("org/repo", HubId("org/repo")),
        ("Org/Repo-GGUF:q4_k_m", HubId("Org/Repo-GGUF", "Q4_K_M")),
        ("a/b.c_d-e", HubId("a/b.c_d-e")),
        ("org/repo:UD-Q4_K_XL", HubId("org/repo", "UD-Q4_K_XL")),
    ],
)
def test_hub_ids_are_read(text: str, hub: HubId) -> None:
    assert HubId.parse(text) == hub
    assert fold(str(hub)) == fold(text)


@pytest.mark.parametrize(
    "text",
    ["repo", "a/b/c", "org/", "/repo", "org/..", "-a/b", "a/.b", "a/b.", "a/b--c", "a/b:", "a/b:*", "a/b\n"],
)
def test_other_shapes_are_no_hub_ids(text: str) -> None:
    assert HubId.parse(text) is None


@pytest.mark.parametrize("text", ["./tiny", "models/Tiny.GGUF", "tiny.gguf", "/a", "~/a", "a/b/c", "../a"])
def test_what_is_written_as_a_path_is_one(text: str) -> None:
    assert is_path(text)


@pytest.mark.parametrize("text", ["tiny", "org/repo", "org/repo:Q8_0", "name:tag"])
def test_what_is_written_as_a_name_or_hub_id_is_no_path(text: str) -> None:
    assert not is_path(text)


def test_an_operator_may_name_a_file_in_any_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    root = tmp_path.resolve()
    (tmp_path / "org").mkdir()
    for name in ("tiny.gguf", "bare", "org/repo"):
        (tmp_path / name).touch()
    (tmp_path / "link.gguf").symlink_to("tiny.gguf")
    for text in ("tiny.gguf", "./tiny.gguf", "org/../tiny.gguf", "~/tiny.gguf", "link.gguf"):
        assert operator_path(text) == root / "tiny.gguf"
    assert operator_path("bare") == root / "bare"
    assert operator_path("org/repo") == root / "org" / "repo"
    assert operator_path("missing.gguf") == root / "missing.gguf"
    for name in ("missing", "org/other", "a\0b.gguf", "~nobody-of-this-name/x", "x" * 5000):
        assert operator_path(name) is None


def test_a_link_to_a_blob_keeps_its_name(tmp_path: Path) -> None:
    root = tmp_path.resolve()
    (tmp_path / "blob").touch()
    (tmp_path / "model-00001-of-00002.gguf").symlink_to("blob")
    (tmp_path / "circle.gguf").symlink_to("circle.gguf")
    assert real_file(tmp_path / "model-00001-of-00002.gguf") == root / "model-00001-of-00002.gguf"
    assert real_file(tmp_path / "circle.gguf").name == "circle.gguf"


def test_ten_thousand_hostile_names_are_names_under_their_root_or_refused() -> None:
    refused = 0
    for text in hostile_names(10_000):
        try:
            name = ModelRef.parse(text).text
        except ModelNotFound:
            refused += 1
            continue
        assert Path("/root", name).resolve().is_relative_to("/root")
    assert 9_000 < refused < 10_000
