"""Gateway and runtime normalise paths in the same way, so that clients can use either."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from plimsoll_gateway.proxy.request_head import plain_path as of_the_gateway
from plimsoll_runtime.api.server.access import plain_path as of_the_runtime

PARTS = st.sampled_from(["/", "//", "v1", "models", "m", "%2F", "..", "chat", "completions", "v1/models/"])


@given(parts=st.lists(PARTS, max_size=12))
def test_both_have_one_rule(parts: list[str]) -> None:
    path = "/" + "".join(parts)
    assert of_the_gateway(path) == of_the_runtime(path)
