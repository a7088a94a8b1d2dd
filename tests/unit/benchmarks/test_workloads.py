from __future__ import annotations

import pytest

from serving.run import LINES
from serving.workloads import PREFIX, Workload, workload, workloads


def lengths(work: Workload) -> list[tuple[int, int]]:
    return [(len(r.prompt), r.output_len) for r in work.requests]


@pytest.mark.parametrize("name", LINES)
def test_rounds_differ_in_tokens_and_not_in_lengths(name: str) -> None:
    first, again, second = workload(name, 1, 1), workload(name, 1, 1), workload(name, 1, 2)

    assert first == again
    assert lengths(first) == lengths(second)
    assert not {r.prompt for r in first.requests} & {r.prompt for r in second.requests}


def test_the_shared_prefix_is_shared_and_primed_only_in_w3p() -> None:
    burst, primed = workload("W3", 1, 1), workload("W3p", 1, 1)
    prefixes = [{r.prompt[:PREFIX] for r in w.requests} for w in (burst, primed)]

    assert [len(p) for p in prefixes] == [1, 1]
    assert prefixes[0] != prefixes[1]
    assert burst.primer is None
    assert primed.primer is not None
    assert primed.primer.prompt[:PREFIX] in prefixes[1]
    assert primed.primer.prompt not in {r.prompt for r in primed.requests}


def test_every_workload_has_its_systems() -> None:
    assert [w.name for w in workloads()] == list(LINES)


def test_tokens_are_in_the_vocabulary() -> None:
    assert all(0 < token < w.shape.vocab for w in workloads() for r in w.requests for token in r.prompt)


def test_the_shapes_of_the_full_size() -> None:
    sizes = {w.name: (len(w.requests), w.users, w.shared) for w in workloads()}

    assert sizes["W1"] == (1, None, 0)
    assert sizes["W2"] == (64, None, 0)
    assert sizes["W3"] == sizes["W3p"] == (64, None, 512)
    assert sizes["W4"] == (128, 64, 0)
    assert sizes["D16"] == (48, 16, 0)
    assert sizes["W6"] == (64, None, 0)
