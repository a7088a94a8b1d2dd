"""Fair shares, against a definition that fills them one by one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from plimsoll_gateway.leases.split import Need, even, split

needs = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)).map(lambda n: Need(n[0], n[0] + n[1])), min_size=1)


def filled(budget: int, wanted: list[Need]) -> list[int]:
    """Unit by unit to whoever has least of those who want more, the first of equals; the rest evenly."""
    shares = [need.used for need in wanted]
    left = budget - sum(shares)
    while left > 0 and (open_ones := [at for at, need in enumerate(wanted) if shares[at] < need.want]):
        shares[min(open_ones, key=shares.__getitem__)] += 1
        left -= 1
    return [share + (even(left, len(wanted), at) if left > 0 else 0) for at, share in enumerate(shares)]


@given(budget=st.integers(0, 200), wanted=needs)
def test_shares_are_those_of_filling_one_by_one(budget: int, wanted: list[Need]) -> None:
    shares, expected = split(budget, wanted), filled(budget, wanted)
    assert sum(shares) == max(budget, sum(need.used for need in wanted))
    assert sorted(shares) == sorted(expected)
    assert all(abs(share - other) <= 1 for share, other in zip(shares, expected, strict=True))
    assert all(share >= need.used for share, need in zip(shares, wanted, strict=True))


@given(budget=st.integers(0, 100), wanted=needs, more=st.integers(1, 10**9))
def test_asking_for_more_than_fair_changes_nothing(budget: int, wanted: list[Need], more: int) -> None:
    shares = split(budget, wanted)
    hungry = [Need(need.used, need.want + more) if share < need.want else need
              for share, need in zip(shares, wanted, strict=True)]  # fmt: skip
    assert split(budget, hungry) == shares


@given(budget=st.integers(0, 10**12), members=st.integers(1, 50))
def test_even_shares_make_the_budget(budget: int, members: int) -> None:
    shares = [even(budget, members, at) for at in range(members)]
    assert sum(shares) == budget
    assert max(shares) - min(shares) <= 1
