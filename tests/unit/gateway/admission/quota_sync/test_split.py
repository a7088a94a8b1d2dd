"""Fair shares agree with a definition that fills them unit by unit."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from plimsoll_gateway.admission.quota_sync.split import even, split

wants = st.lists(st.integers(0, 40), min_size=1)


def filled(quota: int, wanted: list[int]) -> list[int]:
    """Give each unit to the smallest unmet share, the first of equals; the rest evenly."""
    shares = [0] * len(wanted)
    left = quota
    while left > 0 and (open_ones := [at for at, want in enumerate(wanted) if shares[at] < want]):
        shares[min(open_ones, key=shares.__getitem__)] += 1
        left -= 1
    return [share + even(left, len(wanted), at) for at, share in enumerate(shares)]


@given(quota=st.integers(0, 200), wanted=wants)
def test_shares_are_those_of_filling_one_by_one(quota: int, wanted: list[int]) -> None:
    shares = split(quota, wanted)
    assert sum(shares) == quota
    assert shares == filled(quota, wanted)


@given(quota=st.integers(0, 100), wanted=wants, more=st.integers(1, 10**9))
def test_asking_for_more_than_fair_changes_nothing(quota: int, wanted: list[int], more: int) -> None:
    shares = split(quota, wanted)
    hungry = [want + more if share < want else want for share, want in zip(shares, wanted, strict=True)]
    assert split(quota, hungry) == shares


@given(quota=st.integers(0, 10**12), members=st.integers(1, 50))
def test_even_shares_make_the_budget(quota: int, members: int) -> None:
    shares = [even(quota, members, at) for at in range(members)]
    assert sum(shares) == quota
    assert max(shares) - min(shares) <= 1
