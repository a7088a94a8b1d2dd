"""The text of a download's progress: its rate over the last seconds, and its remaining time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll_runtime.utils.progress import WINDOW_SECONDS, Rate, Transfer, transfer_text


@pytest.mark.parametrize(
    ("transfer", "rate", "text"),
    [
        (Transfer(1_200_000_000, 2_900_000_000), 31e6, "1.2 of 2.9 GB, 31 MB/s, 55 s left"),
        (Transfer(0, 2_900_000_000), None, "0.0 of 2.9 GB"),
        (Transfer(5_000_000, 2_900_000_000), 1.5e6, "0.0 of 2.9 GB, 1.5 MB/s, 32 min left"),
        (Transfer(5_000_000, 900_000_000_000), 11e6, "0.0 of 900.0 GB, 11 MB/s, 22.7 h left"),
        (Transfer(5_000_000), 2e6, "5.0 MB, 2.0 MB/s"),
        (Transfer(500_000_000, 700_000_000), 0.0, "500.0 of 700.0 MB, 0 kB/s"),
    ],
)
def test_texts(transfer: Transfer, rate: float | None, text: str) -> None:
    assert transfer_text(transfer, rate) == text


@given(st.integers(0, 10**14), st.integers(0, 10**14), st.none() | st.floats(0, 10**11))
def test_a_line_has_room_for_any(done: int, total: int, rate: float | None) -> None:
    assert len(transfer_text(Transfer(min(done, total), total), rate)) <= 80 - len("a-model-of-some-name-0: loading: ")


def test_the_rate_is_that_of_the_last_seconds() -> None:
    rate = Rate()
    assert rate.update(0.0, 0) is None
    assert rate.update(0.5, 50) is None, "of half a second nothing is said"
    assert [rate.update(float(second), 100 * second) for second in (1, 2, 3)] == [100.0] * 3
    stalled = [rate.update(3.0 + second, 300) for second in range(1, int(WINDOW_SECONDS) + 3)]
    assert stalled == sorted(stalled, key=lambda value: -(value or 0))
    assert stalled[-1] == 0.0
    assert rate.update(60.0, 10) is None, "another download"
