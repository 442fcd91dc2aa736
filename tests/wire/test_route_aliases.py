"""Other names of routes, and what somebody meant who found none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganglion.wire import openapi
from ganglion.wire.route_aliases import ALIASES, aliases_of, canonical_path, suggested_path

PATHS = frozenset(operation.path for operation in openapi.NODE.operations)


def test_every_alias_means_a_route_and_is_found_from_it() -> None:
    for alias, path in ALIASES.items():
        assert path in PATHS
        assert canonical_path(alias) == path
        assert alias in aliases_of(path)


@given(st.sampled_from(sorted(PATHS)))
def test_a_name_and_its_alias_mean_each_other_and_nothing_is_renamed_twice(path: str) -> None:
    for alias in aliases_of(path):
        assert canonical_path(alias) == path
    assert canonical_path(canonical_path(path)) == canonical_path(path)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/responses", "/v1/responses"),
        ("/responses/resp_1/input_items", "/v1/responses/resp_1/input_items"),
        ("/messages/count_tokens", "/v1/messages/count_tokens"),
        ("/responsesque", "/responsesque"),
        ("/v1/responses", "/v1/responses"),
        ("/models", "/models"),
        ("/", "/"),
    ],
)
def test_a_path_means_its_route(path: str, expected: str) -> None:
    assert canonical_path(path) == expected


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v1/chat/completion", "/v1/chat/completions"),
        ("/v1/chat/completions/", "/v1/chat/completions"),
        ("/v1/v1/chat/completions", "/v1/chat/completions"),
        ("/api/v1/chat/completions", "/v1/chat/completions"),
        ("/openai/v1/embeddings", "/v1/embeddings"),
        ("/v1/api/chat", "/api/chat"),
        ("/v1/embedding", "/v1/embeddings"),
        ("/v1/tokenize", "/tokenize"),
        ("/completion", "/v1/completions"),
        ("/infill", "/v1/completions, with 'suffix'"),
        ("/props", "/v1/models and /tokenizer_info"),
        ("/wp-login.php", None),
        ("/", None),
        ("/v1/chat/completions" * 20, None),
    ],
)
def test_who_finds_nothing_is_told_what_was_meant(path: str, expected: str | None) -> None:
    assert suggested_path(path, PATHS) == expected
