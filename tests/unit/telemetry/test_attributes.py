"""Names that are made of a request."""

from __future__ import annotations

import pytest

from plimsoll_telemetry.attributes import OTHER_METHOD, method_of, operation_of, request_name


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_a_known_method_names_the_span(method: str) -> None:
    assert request_name(method_of(method), "/v1/x") == f"{method} /v1/x"


@pytest.mark.parametrize("method", ["get", "SECRET", "", "POST\n", "PO ST"])
def test_an_invented_method_is_in_no_span(method: str) -> None:
    assert method_of(method) == OTHER_METHOD
    assert request_name(method_of(method), "other") == "HTTP other"


def test_only_endpoints_of_models_have_an_operation() -> None:
    assert operation_of("/v1/chat/completions") == "chat"
    assert operation_of("/v1/models") is None
