"""The order of measured backends follows from their times alone."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll_runtime.execution.attention.backends.reference import ReferenceBackend
from plimsoll_runtime.execution.attention.base import AttentionBackend
from plimsoll_runtime.execution.attention.benchmark import Timing
from plimsoll_runtime.execution.attention.registry import BACKENDS
from plimsoll_runtime.execution.attention.selection import DIVIDING, backend_called, ranked
from plimsoll_runtime.execution.attention.split import split_backend

NAMED: Mapping[str, type[AttentionBackend]] = {
    name: type("Named", (ReferenceBackend,), {"name": name}) for name in "abcd"
}
TIMES = {"a": Timing(decode_ms=1.0, chunk_ms=10.0), "b": Timing(decode_ms=9.0, chunk_ms=4.0), "c": Timing(9.5, 5.0)}


def names(timings: Mapping[str, Timing], *, divide: bool = True) -> list[str]:
    found = ranked({NAMED[name]: timing for name, timing in timings.items()}, divide=divide)
    return [backend.name for backend in found]


def test_one_for_prompts_and_another_for_decodes() -> None:
    assert names(TIMES) == ["b+a", "c+a", "a", "b", "c"]
    assert names(TIMES, divide=False) == ["a", "b", "c"]


@pytest.mark.parametrize(
    "times",
    [
        {"a": Timing(1.0, 4.0), "b": Timing(9.0, 3.9)},
        {"a": Timing(1.0, 4.0), "b": Timing(2.0, 5.0)},
        {"a": Timing(1.0, 4.0)},
        {"a": Timing(0.0, 0.0), "b": Timing(0.0, 0.0)},
    ],
    ids=["little", "worse", "alone", "nothing"],
)
def test_one_for_all(times: dict[str, Timing]) -> None:
    assert names(times) == list(times)


def test_names_are_read_back() -> None:
    pair = split_backend(BACKENDS["cudnn-paged"], BACKENDS["triton"])
    for backend in (BACKENDS["flash-attn"], pair):
        assert backend_called(backend.name) is backend


@given(st.dictionaries(st.sampled_from("abcd"), st.builds(Timing, st.floats(0, 9), st.floats(0, 9)), min_size=1))
def test_each_alone_and_only_pairs_that_gain(times: dict[str, Timing]) -> None:
    found = names(times)
    assert set(found) >= set(times)
    parts = [(name[0], name[-1]) for name in found]
    for chunks, decodes in parts:
        if chunks != decodes:
            taken = DIVIDING * (times[chunks].chunk_ms + times[decodes].decode_ms)
            assert taken < min(times[chunks].total_ms, times[decodes].total_ms)
    fastest = min(
        [t.total_ms for t in times.values()]
        + [DIVIDING * (p.chunk_ms + d.decode_ms) for p in times.values() for d in times.values() if p is not d]
    )
    chunks, decodes = parts[0]
    gain = 1.0 if chunks == decodes else DIVIDING
    assert gain * (times[chunks].chunk_ms + times[decodes].decode_ms) == pytest.approx(fastest)
