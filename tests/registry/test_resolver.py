"""Which model a name means."""

import random
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ganglion.core.errors import InvalidValue, ModelNotFound
from ganglion.registry.hub.embedded import SMOLLM2
from ganglion.registry.naming.catalogue import HeldModelRef, NameCatalogue
from ganglion.registry.naming.manifest import ManifestEntry, ModelsManifest
from ganglion.registry.naming.names import HubId
from ganglion.registry.naming.resolver import (
    EmbeddedSource,
    HeldSource,
    HubSource,
    LocalFileSource,
    Resolution,
    Unresolved,
    explain,
    nearest_names_hint,
    resolve,
)
from ganglion.registry.stores.stored_models import Store, StoredModel
from support.examples import examples
from support.hostile_names import HOSTILE, hostile_names

HERE = Path("/stores")


def stored(
    name: str,
    architecture: str | None = None,
    quantisation: str = "",
    hub_id: str | None = None,
    *,
    store: Store = "models folder",
    folder: str = "",
    error: str | None = None,
) -> StoredModel:
    path = HERE / store / folder / f"{name.replace(':', '-')}.gguf"
    return StoredModel(name, path, (path,), store, 1, architecture, quantisation, hub_id, error)


def asked(name: str, catalogue: NameCatalogue) -> Resolution:
    """As a request asks."""
    return resolve(name, catalogue, may_be_path=False)


def file_of(name: str, catalogue: NameCatalogue) -> Path:
    source = asked(name, catalogue).source
    assert isinstance(source, LocalFileSource)
    return source.path


def entries(*entries: ManifestEntry) -> ModelsManifest:
    return ModelsManifest(entries)


def why(name: str, catalogue: NameCatalogue) -> str:
    return " | ".join(f"{step.tried}: {step.gave}" for step in asked(name, catalogue).steps)


# The order. Every place knows the name "it"; each row takes the first one away from the row before.


IT_STORED = stored("it")
IT_KIND = stored("other", "it")
IT_EMBEDDED = replace(SMOLLM2, id="it")
ORDER = [
    (NameCatalogue(held=(HeldModelRef("a", ("it",)), HeldModelRef("it"))), HeldSource("it"), "it"),
    (NameCatalogue(held=(HeldModelRef("a", ("IT",)),)), HeldSource("a"), "a"),
    (
        NameCatalogue(manifest=entries(ManifestEntry("a", aliases=("It",), path=HERE / "a"))),
        LocalFileSource(HERE / "a", None),
        "a",
    ),
    (
        NameCatalogue(manifest=entries(ManifestEntry("it", path=HERE / "b"))),
        LocalFileSource(HERE / "b", None),
        "it",
    ),
    (NameCatalogue(stored=(IT_STORED,)), LocalFileSource(IT_STORED.path, "models folder"), "it"),
    (NameCatalogue(stored=(IT_KIND,)), LocalFileSource(IT_KIND.path, "models folder"), "other"),
    (NameCatalogue(embedded=IT_EMBEDDED), EmbeddedSource(IT_EMBEDDED), "it"),
    (NameCatalogue(held=(HeldModelRef("star", ("*",)),)), HeldSource("star"), "star"),
]


def merged(catalogues: list[NameCatalogue]) -> NameCatalogue:
    """Everything that any of them knows."""
    return NameCatalogue(
        held=tuple(held for catalogue in catalogues for held in catalogue.held),
        manifest=ModelsManifest(
            tuple(entry for catalogue in catalogues for entry in catalogue.manifest.entries)
        ),
        stored=tuple(model for catalogue in catalogues for model in catalogue.stored),
        embedded=next((c.embedded for c in catalogues if c.embedded is IT_EMBEDDED), None),
    )


@pytest.mark.parametrize("place", range(len(ORDER)))
def test_the_first_place_that_knows_a_name_decides(place: int) -> None:
    catalogue = merged([row[0] for row in ORDER[place:]])
    _, source, model_id = ORDER[place]
    found = asked("it", catalogue)
    assert (found.source, found.id) == (source, model_id)


def test_a_hub_id_comes_last_and_only_where_downloads_are_allowed() -> None:
    assert asked("org/repo:q4_0", NameCatalogue(may_download=True)).source == HubSource("org/repo", "Q4_0")
    caught = NameCatalogue(held=(HeldModelRef("star", ("*",)),), may_download=True)
    assert asked("org/repo", caught).source == HeldSource("star")
    loaded = resolve("org/repo", caught, may_be_path=False, may_catch_all=False)
    assert (loaded.id, loaded.source) == ("org/repo", HubSource("org/repo", None))
    with pytest.raises(ModelNotFound) as raised:
        asked("org/repo", NameCatalogue())
    assert (raised.value.hint or "").startswith("Downloads are off.")


# Case.


def test_ids_of_held_models_are_exact_and_everything_else_is_not() -> None:
    held = NameCatalogue(held=(HeldModelRef("Model", ("Alias",)),), embedded=None)
    assert asked("Model", held).source == HeldSource("Model")
    assert asked("aLIAS", held).source == HeldSource("Model")
    with pytest.raises(ModelNotFound):
        asked("model", held)
    others = NameCatalogue(
        manifest=entries(ManifestEntry("straße".casefold(), path=HERE / "s")),
        stored=(stored("Qwen3-4B-Q4_K_M", "Qwen3"),),
    )
    assert file_of("STRASSE", others) == HERE / "s"
    for name in ("qwen3-4b-q4_k_m", "QWEN3-4B", "qWEN3", "qwen3-4b-q4_k_m.GGUF", "Qwen3-4B:q4_k_m"):
        assert file_of(name, others) == others.stored[0].path
    assert asked("SMOLLM2", others).source == EmbeddedSource(SMOLLM2)


def test_names_are_compared_composed() -> None:
    catalogue = NameCatalogue(stored=(stored("cafe\u0301"),))
    assert file_of("Caf\u00e9", catalogue) == catalogue.stored[0].path


@pytest.mark.parametrize(
    "name", ["smollm2", "SmolLM2", "smollm2:135m", "smollm2-135m", "SmolLM2-135M-Instruct", "smollm2:latest"]
)
def test_the_embedded_model_has_several_names(name: str) -> None:
    found = asked(name, NameCatalogue())
    assert (found.id, found.source) == (SMOLLM2.id, EmbeddedSource(SMOLLM2))
    assert found.aliases == SMOLLM2.names


def test_latest_stands_for_no_tag_in_aliases_and_entries_too() -> None:
    catalogue = NameCatalogue(
        held=(HeldModelRef("a", ("gpt",)),), manifest=entries(ManifestEntry("mm", path=HERE / "m"))
    )
    assert asked("gpt:latest", catalogue).id == "a"
    assert asked("MM:latest", catalogue).id == "mm"
    with pytest.raises(ModelNotFound):
        asked("mm:8b", catalogue)


# Discovery.


QUANTISED = tuple(stored(f"Qwen3-4B-{quant}", "qwen3") for quant in ("Q8_0", "Q2_K", "Q4_K_M", "UD-Q4_K_XL"))


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("qwen3-4b", "Qwen3-4B-Q4_K_M"),
        ("qwen3-4b:q8_0", "Qwen3-4B-Q8_0"),
        ("qwen3-4b:UD-Q4_K_XL", "Qwen3-4B-UD-Q4_K_XL"),
        ("qwen3-4b:q4_k_xl", "Qwen3-4B-UD-Q4_K_XL"),
        ("qwen3-4b:latest", "Qwen3-4B-Q4_K_M"),
        ("qwen3-4b:F16", "Qwen3-4B-Q4_K_M"),
        ("qwen3:4b", "Qwen3-4B-Q4_K_M"),
        ("qwen3", "Qwen3-4B-Q4_K_M"),
        ("qwen3:Q2_K", "Qwen3-4B-Q2_K"),
        ("qwen3:7b", "Qwen3-4B-Q4_K_M"),
    ],
)
@pytest.mark.parametrize("is_reversed", [False, True])
def test_a_name_without_quantisation_takes_the_preferred_one(
    name: str, found: str, is_reversed: bool
) -> None:
    models = QUANTISED[::-1] if is_reversed else QUANTISED
    assert asked(name, NameCatalogue(stored=models)).id == found


def test_the_configured_quantisation_comes_before_the_documented_order() -> None:
    catalogue = NameCatalogue(stored=QUANTISED, preferred_quant="q8_0")
    assert asked("qwen3-4b", catalogue).id == "Qwen3-4B-Q8_0"
    assert "Q8_0 is configured, Q2_K, Q4_K_M, UD-Q4_K_XL would be here too" in why("qwen3-4b", catalogue)
    assert "Q4_K_M comes first in the order of preference" in why("qwen3-4b", NameCatalogue(stored=QUANTISED))
    assert "no file has the tag F16" in why("qwen3-4b:F16", catalogue)
    absent = NameCatalogue(stored=QUANTISED, preferred_quant="F16")
    assert asked("qwen3-4b", absent).id == "Qwen3-4B-Q4_K_M"


def test_the_embedded_model_is_found_by_its_architecture_where_no_file_has_it() -> None:
    for name in ("llama", "LLaMA", "llama:latest", "llama:135m"):
        found = asked(name, NameCatalogue())
        assert (found.id, isinstance(found.source, EmbeddedSource)) == (SMOLLM2.id, True), name
    held = asked("llama", NameCatalogue(held=(HeldModelRef(SMOLLM2.id, SMOLLM2.names),)))
    assert held.source == HeldSource(SMOLLM2.id)
    own = stored("mine", "llama")
    assert asked("llama", NameCatalogue(stored=(own,))).source == LocalFileSource(own.path, own.store)
    with pytest.raises(ModelNotFound):
        asked("llama", NameCatalogue(stored=(own, stored("other", "llama"))))
    with pytest.raises(ModelNotFound):
        asked("qwen3", NameCatalogue())


def test_different_models_of_one_architecture_are_not_chosen_between() -> None:
    catalogue = NameCatalogue(
        stored=(stored("Tiny", "llama"), stored("Large", "llama"), stored("Bad", "gone"))
    )
    outcome = explain("llama", catalogue, may_be_path=False)
    assert isinstance(outcome, Unresolved)
    assert "it could be any of Large, Tiny" in [step.gave for step in outcome.steps]


def test_a_file_that_cannot_be_used_is_taken_only_when_it_is_the_only_one_of_its_name() -> None:
    broken = stored("it-Q4_K_M", "it", error="cut short")
    assert file_of("it", NameCatalogue(stored=(broken, stored("it-Q8_0")))).stem == "it-Q8_0"
    assert file_of("it", NameCatalogue(stored=(broken,))) == broken.path
    assert "cut short" in why("it", NameCatalogue(stored=(broken,)))
    with pytest.raises(ModelNotFound):
        asked("kind", NameCatalogue(stored=(stored("it", "kind", error="cut short"),)))


def test_ollama_names_are_found_with_and_without_their_tag() -> None:
    models = tuple(
        stored(name, "llama", store="Ollama")
        for name in ("llama3.2:1b", "llama3.2:latest", "phi4:14b-q4_K_M")
    )
    catalogue = NameCatalogue(stored=models)
    assert asked("llama3.2", catalogue).id == "llama3.2:latest"
    assert asked("Llama3.2:1B", catalogue).id == "llama3.2:1b"
    for name in ("phi4", "phi4:14b", "phi4:14b-q4_k_m", "phi4:Q4_K_M", "phi4:latest"):
        assert asked(name, catalogue).id == "phi4:14b-q4_K_M"
    ambiguous = NameCatalogue(stored=(models[0], stored("llama3.2:3b", store="Ollama")), embedded=None)
    with pytest.raises(ModelNotFound):
        asked("llama3.2", ambiguous)


def test_a_hub_id_that_is_stored_means_its_file() -> None:
    models = (
        stored("weights-a", quantisation="Q8_0", hub_id="Org/Repo", store="Hugging Face cache"),
        stored("weights-Q4_K_M", hub_id="Org/Repo", store="LM Studio"),
    )
    catalogue = NameCatalogue(stored=models, may_download=True)
    assert file_of("org/repo", catalogue) == models[1].path
    assert file_of("org/REPO:q8_0", catalogue) == models[0].path
    assert asked("Org/Repo:Q2_K", catalogue).source == HubSource("Org/Repo", "Q2_K")
    assert asked("Org/Repo:Q2_K", catalogue).id == "Org/Repo:Q2_K"
    assert "the files from there are Q4_K_M, Q8_0" in why("Org/Repo:Q2_K", catalogue)
    offline = NameCatalogue(stored=models)
    assert file_of("org/repo:Q8_0", offline) == models[0].path


# One file, one id.


def test_every_name_of_a_file_gives_one_id() -> None:
    model = stored("Tiny-Q4_0", "tiny", "Q4_0", "org/tiny")
    catalogue = NameCatalogue(stored=(model, stored("Other-Q4_0", "other")))
    names = ("Tiny-Q4_0", "tiny", "tiny-q4_0.gguf", "tiny:q4_0", "org/tiny", "org/tiny:Q4_0")
    assert {asked(name, catalogue).id for name in names} == {"Tiny-Q4_0"}
    by_path = resolve(str(model.path), catalogue, may_be_path=True)
    assert (by_path.id, by_path.source) == ("Tiny-Q4_0", LocalFileSource(model.path, "models folder"))
    for entry in (
        ManifestEntry("mine", path=model.path, aliases=("nick",)),
        ManifestEntry("mine", hub=HubId("Org/Tiny", "Q4_0"), quant="Q4_0", aliases=("nick",)),
        ManifestEntry("mine", hub=HubId("org/tiny"), aliases=("nick",)),
    ):
        named = NameCatalogue(stored=catalogue.stored, manifest=entries(entry))
        found = [asked(name, named) for name in (*names, "mine", "nick")]
        found.append(resolve(str(model.path), named, may_be_path=True))
        assert {(one.id, one.source, one.entry, one.aliases) for one in found} == {
            ("mine", LocalFileSource(model.path, "models folder"), entry, ("nick",))
        }
        held = named.with_held((HeldModelRef("served", ("x",), model.path),))
        found = [asked(name, held) for name in (*names, "mine", "nick", "served", "x")]
        found.append(resolve(str(model.path), held, may_be_path=True))
        assert {(one.id, one.source, one.aliases) for one in found} == {
            ("served", HeldSource("served"), ("x",))
        }


def test_two_entries_of_one_file_are_one_model_with_the_settings_of_the_first() -> None:
    first, second = (
        ManifestEntry("a", path=HERE / "x", aliases=("aa",)),
        ManifestEntry("b", path=HERE / "x", aliases=("bb",)),
    )
    catalogue = NameCatalogue(manifest=entries(first, second))
    for name in ("a", "b", "aa", "bb"):
        found = asked(name, catalogue)
        assert (found.id, found.entry, found.aliases) == ("a", first, ("aa", "b", "bb"))


def test_an_entry_without_a_source_is_about_the_file_or_model_of_its_name() -> None:
    about_file = ManifestEntry("tiny", is_pinned=True, quant="Q8_0")
    about_embedded = ManifestEntry("smollm2", is_pinned=True, aliases=("small",))
    about_nothing = ManifestEntry("nothing")
    catalogue = NameCatalogue(
        stored=(stored("Tiny-Q4_0"), stored("Tiny-Q8_0")),
        manifest=entries(about_file, about_embedded, about_nothing),
    )
    found = asked("TINY", catalogue)
    assert (found.id, found.entry) == ("tiny", about_file)
    assert file_of("tiny", catalogue).stem == "Tiny-Q8_0"
    assert asked("tiny-q8_0", catalogue).id == "tiny"
    assert asked("tiny-q4_0", catalogue).id == "Tiny-Q4_0"
    for name in ("smollm2", SMOLLM2.id, "smollm2-135m", "small"):
        found = asked(name, catalogue)
        assert (found.id, found.source, found.entry) == ("smollm2", EmbeddedSource(SMOLLM2), about_embedded)
        assert SMOLLM2.id in found.aliases
    with pytest.raises(ModelNotFound) as raised:
        asked("nothing", catalogue)
    assert "models.yaml" in (raised.value.hint or "")


def test_an_entry_of_the_hub_is_downloaded_under_its_key_or_not_at_all() -> None:
    entry = ManifestEntry("big", hub=HubId("org/repo", "Q8_0"), quant="Q8_0", aliases=("b",))
    online = NameCatalogue(manifest=entries(entry), may_download=True)
    for name in ("big", "B", "org/repo", "Org/Repo:q8_0"):
        found = asked(name, online)
        assert (found.id, found.source, found.entry) == ("big", HubSource("org/repo", "Q8_0"), entry)
    assert asked("org/repo:Q2_K", online).id == "org/repo:Q2_K"
    assert asked("b", online.with_held((HeldModelRef("big"),))).source == HeldSource("big")
    with pytest.raises(ModelNotFound) as raised:
        asked("big", NameCatalogue(manifest=entries(entry)))
    assert "downloads are off" in (raised.value.hint or "")


def test_files_of_one_name_keep_their_own_ids() -> None:
    one = stored("same", quantisation="Q4_K_M", store="Ollama")
    two = stored("same", quantisation="Q4_K_M", folder="a")
    three = stored("same", quantisation="Q4_K_M", folder="b")
    hub = stored("same", quantisation="Q2_K", hub_id="org/repo", store="Hugging Face cache")
    models = (one, two, three, hub)
    catalogue = NameCatalogue(stored=models)
    ids = {catalogue.id_of(model): model for model in models}
    assert ids.keys() == {"same", "same#2", "same#3", "org/repo:Q2_K"}
    for model_id, model in ids.items():
        assert file_of(model_id, catalogue) == model.path
        assert asked(model_id, catalogue).id == model_id
    taken = NameCatalogue(stored=(two,), manifest=entries(ManifestEntry("same", path=HERE / "x")))
    assert asked("same", taken).source == LocalFileSource(HERE / "x", None)
    assert resolve(str(two.path), taken, may_be_path=True).id == "same#1"
    elsewhere = NameCatalogue(stored=(two,), held=(HeldModelRef("same", path=HERE / "x"),))
    assert resolve(str(two.path), elsewhere, may_be_path=True).id == "same#1"


def test_a_model_that_is_held_under_the_same_id_with_another_file_is_not_that_file() -> None:
    changed = NameCatalogue(
        held=(HeldModelRef("it", path=HERE / "old"),),
        manifest=entries(ManifestEntry("it", path=HERE / "new")),
    )
    assert resolve(str(HERE / "new"), changed, may_be_path=True).source == LocalFileSource(HERE / "new", None)
    assert resolve(str(HERE / "old"), changed, may_be_path=True).source == HeldSource("it")
    unknown = changed.with_held((HeldModelRef("it"),))
    assert resolve(str(HERE / "new"), unknown, may_be_path=True).source == HeldSource("it")


# Paths.


@pytest.mark.parametrize("name", ["./tiny", "models/Tiny.gguf", "tiny.gguf", "/abs/tiny.gguf"])
def test_an_operator_s_path_is_its_own_source(name: str) -> None:
    found = resolve(name, NameCatalogue(), may_be_path=True)
    assert (found.id, found.source) == (Path(name).stem, LocalFileSource(Path(name), None))


def test_the_part_of_a_split_file_is_not_in_its_id() -> None:
    assert resolve("/x/big-00001-of-00003.gguf", NameCatalogue(), may_be_path=True).id == "big"


@pytest.mark.parametrize(
    "name", [str(IT_STORED.path), "./it", "../it.gguf", "~/it.gguf", "models folder/../it"]
)
def test_a_request_s_path_is_an_unknown_model(name: str) -> None:
    with pytest.raises(ModelNotFound):
        asked(name, NameCatalogue(stored=(IT_STORED,), may_download=True))


def test_an_operator_may_still_use_names_and_hub_ids() -> None:
    catalogue = NameCatalogue(stored=(IT_STORED,), may_download=True)
    assert resolve("it", catalogue, may_be_path=True).id == "it"
    assert resolve("org/repo", catalogue, may_be_path=True).source == HubSource("org/repo", None)


# What is said.


def test_the_steps_say_what_was_tried_and_what_it_gave() -> None:
    found = asked("qwen3", NameCatalogue(stored=QUANTISED[:1]))
    assert [(step.tried, step.gave) for step in found.steps] == [
        ("the exact id of a held model", "none is called so"),
        ("an alias", "nobody has it"),
        ("models.yaml", "no entry of this name"),
        ("stored files by name", "no file is called so"),
        ("stored files by hub id", "it is no hub id"),
        ("stored files by architecture", "Qwen3-4B-Q8_0 (models folder)"),
    ]
    missed = explain("nope", NameCatalogue(), may_be_path=False)
    assert isinstance(missed, Unresolved)
    assert missed.steps[-1].gave == "it is no hub id"


def test_an_unknown_name_lists_what_is_here_and_what_is_near() -> None:
    catalogue = NameCatalogue(
        held=(HeldModelRef("held"),),
        manifest=entries(ManifestEntry("entry", path=HERE / "e")),
        stored=(stored("Qwen3-4B"), stored("llama")),
    )
    with pytest.raises(ModelNotFound) as raised:
        asked("qwen3", catalogue)
    assert raised.value.hint == (
        "Did you mean Qwen3-4B? Here: held, entry, smollm2-135m-instruct, Qwen3-4B, llama."
    )
    assert nearest_names_hint("x", []) == "No model is here yet."


def test_the_nearest_of_many_names_is_found() -> None:
    names = [f"model-{number}" for number in range(5_000)]
    assert nearest_names_hint("qwen4", [*names, "qwen3"]).startswith("Did you mean qwen3? Here: model-0, ")


# Any name.


SHELF = (
    *QUANTISED,
    IT_STORED,
    stored("llama3:8b", "llama", store="Ollama"),
    stored("weights", "phi", "Q8_0", "org/repo", store="LM Studio"),
    stored("same", folder="a"),
    stored("same", folder="b"),
)
EVERYTHING = NameCatalogue(
    held=(HeldModelRef("Held", ("alias",), HERE / "held.gguf"), HeldModelRef("plain")),
    manifest=entries(
        ManifestEntry("fast", path=SHELF[0].path, aliases=("quick",)),
        ManifestEntry("far", hub=HubId("org/far", "Q8_0"), quant="Q8_0"),
        ManifestEntry("smollm2"),
        ManifestEntry("lost"),
    ),
    stored=SHELF,
    may_download=True,
)
KNOWN = (
    "Held",
    "alias",
    "fast",
    "quick",
    "far",
    "org/far",
    "org/repo",
    "qwen3",
    "it",
    "same",
    "llama3",
    "8b",
)
NAMES = st.text(alphabet=st.characters(), max_size=40) | st.lists(
    st.sampled_from((*KNOWN, ":", "/", "#", "-", "Q8_0", "latest", "..", ".gguf", "\0", "~", " ")), max_size=6
).map("".join)


@settings(max_examples=examples(300))
@given(name=NAMES, may_be_path=st.booleans(), may_catch_all=st.booleans())
def test_any_name_is_resolved_in_one_way_or_not_found(
    name: str, may_be_path: bool, may_catch_all: bool
) -> None:
    fresh = NameCatalogue(EVERYTHING.held, EVERYTHING.manifest, SHELF[::-1], may_download=True)
    outcomes = [
        explain(name, catalogue, may_be_path=may_be_path, may_catch_all=may_catch_all)
        for catalogue in (EVERYTHING, EVERYTHING, fresh)
    ]
    assert outcomes[0] == outcomes[1]
    assert [step.tried for step in outcomes[0].steps] == [step.tried for step in outcomes[2].steps]
    try:
        found = resolve(name, EVERYTHING, may_be_path=may_be_path, may_catch_all=may_catch_all)
    except (ModelNotFound, InvalidValue):
        assert isinstance(outcomes[0], Unresolved)
        return
    assert found == outcomes[0]
    assert found.steps
    assert isinstance(outcomes[2], Resolution)
    assert (found.id, found.source) == (outcomes[2].id, outcomes[2].source)
    if not isinstance(found.source, HubSource) and not may_be_path:
        assert asked(found.id, EVERYTHING).id == found.id


def test_ten_thousand_hostile_names_reach_no_file_that_was_not_handed_in() -> None:
    handed_in = {model.path for model in SHELF}
    for name in (*HOSTILE, *hostile_names(10_000)):
        try:
            source = asked(name, EVERYTHING).source
        except (ModelNotFound, InvalidValue) as error:
            assert error.message.isprintable()
            continue
        match source:
            case LocalFileSource(path=path):
                assert path in handed_in
            case HubSource(repo=repo, quant=quant):
                assert HubId.parse(f"{repo}:{quant}" if quant else repo) is not None
            case HeldSource() | EmbeddedSource():
                pass


def test_a_name_among_ten_thousand_files_costs_milliseconds() -> None:
    chance = random.Random(3)
    models = tuple(
        stored(f"Model-{number // 4}B-{quant}", "llama", quant, f"org/repo-{number // 4}", folder=str(number))
        for number in range(10_000)
        for quant in [chance.choice(("Q4_K_M", "Q8_0", "F16"))]
    )
    catalogue = NameCatalogue(held=(HeldModelRef("held"),), stored=models)
    began_s = time.perf_counter()
    assert file_of("model-7b", catalogue)
    indexed_s = time.perf_counter() - began_s
    names = (
        "model-1200b",
        "model-9b:Q8_0",
        "org/repo-44",
        "llama",
        "held",
        "unknown",
        "model-99999b",
        "model",
    )
    began_s = time.perf_counter()
    for name in names:
        explain(name, catalogue.with_held((HeldModelRef(name),)), may_be_path=False)
        explain(name, catalogue, may_be_path=False)
    each_s = (time.perf_counter() - began_s) / len(names) / 2
    print(f"index {indexed_s * 1000:.0f} ms, resolve {each_s * 1000:.2f} ms")
    # Generous: what would be wrong is a scan or an index for every name.
    assert indexed_s < 5
    assert each_s < 0.05
