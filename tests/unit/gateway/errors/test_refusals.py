"""Errors of replicas are read, whatever their bytes."""

from __future__ import annotations

import pytest

from plimsoll_gateway.errors.refusals import code_of, told_by_replica

GOOD = b'{"error": {"message": "too long", "type": "t", "param": "p", "code": "c", "more": [1]}, "more": 2}'
NOT_UTF8 = b'{"error": {"message": "\xff", "code": "c"}}'
NESTED = b'{"other": ' + b"[" * 20_000 + b"]" * 20_000 + b', "error": {"message": "m", "code": "c"}}'
NO_ERRORS = [NOT_UTF8, NESTED, b"", b"<html>", b"[]", b'{"error": "no"}', b'{"error": {"message": 1}}', GOOD[:-1]]


def test_an_error_in_openais_shape_is_passed_on() -> None:
    refusal = told_by_replica("m", 400, GOOD)
    assert (refusal.status, refusal.message, refusal.kind, refusal.param, refusal.code) == (
        400,
        "too long",
        "t",
        "p",
        "c",
    )
    assert code_of(GOOD) == "c"


@pytest.mark.parametrize("body", NO_ERRORS)
def test_what_is_none_has_no_code_and_is_told_by_its_status(body: bytes) -> None:
    assert code_of(body) is None
    refusal = told_by_replica("m", 404, body)
    assert (refusal.status, refusal.code) == (502, "upstream_failed")
    assert "it sent no stream (status 404)" in refusal.message
