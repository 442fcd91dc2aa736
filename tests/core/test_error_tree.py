"""Every error says what each wire makes of it, and the docstring is the whole tree."""

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
    assert (error.status >= 500 or error.code == "load_failed") == (
        issubclass(error, ServerError) or error is GanglionError
    )


@pytest.mark.parametrize("error", CLASSES, ids=lambda error: error.__name__)
def test_every_503_and_429_says_when_to_come_back(error: type[GanglionError]) -> None:
    if error.status in (429, 503):
        assert error.retry_after_s


def test_the_docstring_lists_every_class_once_with_its_code() -> None:
    listed = re.findall(r"(?:^|─ )([A-Z]\w+)(.*)$", errors.__doc__ or "", flags=re.MULTILINE)
    names = [name for name, _ in listed if inspect.isclass(getattr(errors, name, None))]
    assert sorted(names) == sorted(error.__name__ for error in CLASSES)
    for name, rest in listed:
        error = getattr(errors, name, None)
        codes = re.findall(r"[a-z_]+", rest)
        if error is not None and codes:
            assert error.code in codes or error.type in codes


def test_an_error_carries_its_message_parameter_hint_and_extras() -> None:
    error = errors.ContextLengthExceeded(10, 8)
    assert (error.param, error.extras["prompt_len"], error.extras["max"]) == ("messages", 10, 8)
    assert str(error) == error.message
    assert "prompt is too long" in error.message
    assert errors.ModelNotFound("x", hint="y").hint == "y"
