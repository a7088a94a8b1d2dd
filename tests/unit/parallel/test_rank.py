"""Ranks agree on their choices and on the size of their cache, or are refused, each of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parallel_support.ranks import on_ranks

from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.parallel.layout import Layout
from plimsoll_runtime.parallel.member import CountedCollectives
from plimsoll_runtime.parallel.rank import Cache, Chosen, Rank

CHOSEN = Chosen("bfloat16", "cpu", "avx512")
CACHE = Cache(100, 4096, "full", ((0, 1), (2,)))


def of_ranks(size: int, run: Callable[[Rank], object]) -> Sequence[object]:
    """Return the result of each rank, which is the message of a UsageError if it raised one."""

    def of_rank(rank: Rank) -> object:
        try:
            return run(rank)
        except UsageError as error:
            return str(error)

    return on_ranks(
        size, lambda group, number: of_rank(Rank(number, Layout(size), size, group, CountedCollectives(group)))
    )


def checked(choices: Sequence[Chosen]) -> Sequence[object]:
    return of_ranks(len(choices), lambda rank: rank.check(choices[rank.number]))


def cached(caches: Sequence[Cache]) -> Sequence[object]:
    return of_ranks(len(caches), lambda rank: rank.cache(caches[rank.number]))


@pytest.mark.parametrize("size", [1, 2, 4])
def test_all_ranks_get_the_choices_of_rank_0(size: int) -> None:
    found = of_ranks(size, lambda rank: rank.chosen(CHOSEN if rank.number == 0 else None))
    assert found == [CHOSEN] * size


@pytest.mark.parametrize("size", [1, 2, 4])
def test_ranks_with_the_same_choices_continue(size: int) -> None:
    assert checked([CHOSEN] * size) == [None] * size


@pytest.mark.parametrize("different", [1, 2, 3])
@pytest.mark.parametrize(
    ("field", "value", "option"),
    [
        ("dtype", "float32", "--dtype"),
        ("attention_backend", "torch", "--attention-backend"),
        ("instructions", "avx2", "PLIMSOLL_CPU_ISA"),
    ],
)
def test_another_choice_is_refused_on_every_rank(field: str, value: str, option: str, different: int) -> None:
    other = replace(CHOSEN, **{field: value})
    messages = checked([other if number == different else CHOSEN for number in range(4)])
    assert len(set(messages)) == 1
    wanted = f"rank {different} computes with {field} {value}, but rank 0 with {getattr(CHOSEN, field)}"
    assert str(messages[0]).startswith(wanted)
    assert option in str(messages[0])


def test_the_first_of_several_differences_is_named() -> None:
    messages = checked([CHOSEN, replace(CHOSEN, instructions="avx2"), replace(CHOSEN, dtype="float16")])
    assert all(str(message).startswith("rank 1 computes with instructions avx2") for message in messages)


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(1, 10**7), st.integers(1, 10**6)), min_size=1, max_size=4))
def test_the_cache_is_the_smallest(sizes: Sequence[tuple[int, int]]) -> None:
    caches = [replace(CACHE, num_blocks=blocks, max_model_len=longest) for blocks, longest in sizes]
    blocks, longest = zip(*sizes, strict=True)
    assert cached(caches) == [replace(CACHE, num_blocks=min(blocks), max_model_len=min(longest))] * len(sizes)


@pytest.mark.parametrize(
    "other",
    [
        replace(CACHE, rules="window 16"),
        replace(CACHE, layers=((0,), (1, 2))),
        replace(CACHE, layers=((0, 1, 2),)),
        replace(CACHE, layers=((2,), (0, 1))),
    ],
    ids=["rules", "layers", "fewer-groups", "order"],
)
@pytest.mark.parametrize("different", [0, 1, 2])
def test_other_cache_groups_are_refused_on_every_rank(other: Cache, different: int) -> None:
    messages = cached([other if number == different else CACHE for number in range(3)])
    assert len(set(messages)) == 1
    assert "different cache groups" in str(messages[0])
    assert "--tensor-parallel" in str(messages[0])
