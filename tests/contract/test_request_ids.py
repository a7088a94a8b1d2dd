"""A request has one id on its whole way: gateway and runtime keep the same client ids."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import Headers

from plimsoll_gateway.proxy.headers import request_id as gateway_id
from plimsoll_runtime.api.server.access import request_id as runtime_id


@given(wanted=st.binary(max_size=130) | st.from_regex(rb"[A-Za-z0-9._:/-]{1,70}\n?", fullmatch=True))
def test_both_keep_the_same_ids_and_replace_the_same(wanted: bytes) -> None:
    kept_by_gateway = gateway_id(wanted).encode() == wanted
    assert kept_by_gateway == (runtime_id(Headers(raw=[(b"x-request-id", wanted)])).encode() == wanted)


@pytest.mark.parametrize("wanted", ["a", "req_1.2-B", "x" * 64])
def test_what_both_keep(wanted: str) -> None:
    assert gateway_id(wanted.encode()) == wanted
    assert runtime_id(Headers({"x-request-id": wanted})) == wanted


def test_the_gateways_own_ids_are_kept() -> None:
    made = gateway_id(None)
    assert runtime_id(Headers({"x-request-id": made})) == made
