"""The instruction set of a group: the best one that all members have."""

from __future__ import annotations

import pytest

from plimsoll_runtime.parallel.instruction_sets import GroupSet, Sets, group_set

AVX2, AVX512, AMX = ("avx2",), ("avx2", "avx512"), ("avx2", "avx512", "amx")


@pytest.mark.parametrize(
    ("members", "name"),
    [
        ((AMX, AVX512, AVX2), "avx2"),
        ((AVX2, AMX, AMX), "avx2"),
        ((AMX, AVX512, AMX), "avx512"),
        ((AMX, AMX), "amx"),
        ((AMX, ("avx2", "other")), "avx2"),
        ((AMX, ("other", "another")), None),
        ((AMX, ()), None),
        (((), AMX), None),
        (((), ()), None),
    ],
)
def test_the_best_set_that_all_members_have(members: tuple[Sets, ...], name: str | None) -> None:
    assert group_set(dict(enumerate(members))).name == name


@pytest.mark.parametrize(
    ("members", "difference"),
    [
        (
            (AVX512, AVX2),
            "the group computes with avx2, the least of its members: avx512 on member 0, avx2 on member 1",
        ),
        (
            (AVX2, AMX, AVX512, AMX),
            "the group computes with avx2, the least of its members: avx2 on member 0, amx on members 1, 3, avx512 on "
            "member 2",
        ),
        ((AVX2, AVX2), ""),
        ((AVX2, ()), ""),
        (((), ()), ""),
    ],
)
def test_a_difference_names_the_set_of_each_member(members: tuple[Sets, ...], difference: str) -> None:
    assert group_set(dict(enumerate(members))).difference == difference


def test_a_group_without_a_difference_says_what_it_computes_with() -> None:
    same = group_set({0: AMX, 1: AMX})
    assert str(same) == "the group computes with amx, the best instruction set of all its members"
    assert str(GroupSet()).startswith("the members of the group have no instruction set in common")
