"""Every error says what each wire makes of it, and its code leads back to its class."""

import inspect
import re

import pytest

from ganglion.core import errors
from ganglion.core.errors import GanglionError, ServerError

CLASSES = [
    member for _, member in inspect.getmembers(errors, inspect.isclass) if issubclass(member, GanglionError)
]
GRPC = {
    "ABORTED",
    "INVALID_ARGUMENT",
    "UNAUTHENTICATED",
    "PERMISSION_DENIED",
    "NOT_FOUND",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "UNAVAILABLE",
    "UNIMPLEMENTED",
    "DEADLINE_EXCEEDED",
    "INTERNAL",
}
TYPES = {
    "invalid_request_error",
    "authentication_error",
    "permission_error",
    "rate_limit_error",
    "server_error",
}


@pytest.mark.parametrize("error", CLASSES, ids=lambda error: error.__name__)
def test_it_has_a_status_type_code_and_grpc_status(error: type[GanglionError]) -> None:
    assert 400 <= error.status <= 599
    assert error.type in TYPES
    assert re.fullmatch(r"[a-z_]+", error.code)
    assert error.grpc in GRPC
    is_servers = error.status >= 500 and error.code != "unsupported_transfer_encoding"
    assert (is_servers or error.code == "load_failed") == (
        issubclass(error, ServerError) or error is GanglionError
    )


@pytest.mark.parametrize("error", CLASSES, ids=lambda error: error.__name__)
def test_every_503_and_429_says_when_to_come_back(error: type[GanglionError]) -> None:
    if error.status in (429, 503):
        assert error.retry_after_s


@pytest.mark.parametrize("error", CLASSES, ids=lambda error: error.__name__)
def test_its_code_leads_back_to_it_or_to_the_parent_whose_code_it_has(error: type[GanglionError]) -> None:
    found = errors.class_of(error.code)
    assert found is not None
    if "code" in vars(error):
        assert issubclass(found, error), "no two unrelated classes state one code"
    else:
        assert issubclass(error, found)


@pytest.mark.parametrize("error", CLASSES, ids=lambda error: error.__name__)
def test_it_is_rebuilt_in_the_words_it_was_told_in(error: type[GanglionError]) -> None:
    found = errors.rebuild(error, "m", param="p", hint="h", extras={"free_mb": 3}, retry_after_s=9)
    assert type(found) is error
    assert (str(found), found.full_message, found.param) == ("m", "m h", "p")
    assert (found.extras, found.retry_after_s, found.code) == ({"free_mb": 3}, 9, error.code)
    if isinstance(found, errors.InsufficientMemory):
        assert (found.free_mb, found.required_mb) == (3, 0)
    if isinstance(found, errors.ModelNotFound):
        assert found.model == ""


def test_a_code_that_no_class_states_has_no_class() -> None:
    assert errors.class_of("no_such_code") is None
    assert errors.class_of("model_not_found") is errors.ModelNotFound
    assert errors.class_of("internal_error") is ServerError


def test_an_error_carries_its_message_parameter_hint_and_extras() -> None:
    error = errors.ContextLengthExceeded(10, 8)
    assert (error.param, error.extras["prompt_len"], error.extras["max"]) == ("messages", 10, 8)
    assert str(error) == error.message
    assert "prompt is too long" in error.message
    assert errors.ModelNotFound("x", hint="y").hint == "y"
