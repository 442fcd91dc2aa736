"""The slope that a soak reports."""

import pytest
from benchmarks.soak import Sample, request_of, slope_mib


def test_the_slope_is_what_ten_thousand_requests_add() -> None:
    grown = [Sample(number, 50 * 2**20 + number * 200, 9) for number in range(0, 20_000, 500)]
    assert slope_mib(grown) == pytest.approx(200 * 10_000 / 2**20)
    assert slope_mib([Sample(number, 7, 9) for number in range(5)]) == 0.0


def test_every_wire_is_asked_streamed_and_whole() -> None:
    kinds = {(path, "stream" in body, body["model"] == "echo") for path, body in map(request_of, range(16))}
    paths = {"/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/completions"}
    assert {(path, is_streamed, True) for path in paths for is_streamed in (False, True)} <= kinds
    assert ("/v1/chat/completions", True, False) in kinds
