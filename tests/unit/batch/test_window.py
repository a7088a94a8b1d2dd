"""The order of rows: all of them, those with the same start next to each other, the longest first."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from plimsoll_runtime.batch.job import Row
from plimsoll_runtime.batch.run import SHARED, Window, arranged, windows


def row(index: int, data: bytes) -> Row:
    return Row(index, index, "f", index + 1, len(data), data)


def prompt(text: str, index: int = 0) -> bytes:
    return b'{"custom_id": "%d", "prompt": "%s"}' % (index, text.encode())


@given(st.lists(st.sampled_from(["a" * 300, "b" * 300, "c"]), max_size=40), st.integers(1, 10))
def test_every_row_comes_once_and_none_leaves_its_window(texts: list[str], size: int) -> None:
    rows = [row(index, prompt(text, index)) for index, text in enumerate(texts)]
    asked = list(windows(rows, Window(size, 10**9)))
    assert len(asked) == len(rows)
    start, length = 0, 1
    while start < len(rows):
        end = start + length
        assert sorted(asked[start:end], key=lambda each: each.index) == rows[start:end]
        start, length = end, min(size, 2 * length)


def test_rows_are_read_while_others_are_asked() -> None:
    read = 0

    def source() -> Iterator[Row]:
        nonlocal read
        for index in range(1000):
            read += 1
            yield row(index, prompt("a", index))

    behind = []
    for asked, _ in enumerate(windows(source(), Window(160, 10**9)), 1):
        behind.append(read - asked)
    assert behind[0] == 9, "only the first window is read before its first row is asked"
    assert all(later - earlier <= 1 for earlier, later in pairwise(behind)), "nobody waits for more than two rows"
    assert len(behind) == 1000
    assert max(behind) < 2 * 160


def test_what_begins_alike_stands_side_by_side() -> None:
    one, other = "x" * SHARED, "y" * SHARED
    texts = [one + "1", other + "2" * 50, "short", one + "3" * 90, other + "4", "a longer one of its own"]
    asked = [each.index for each in arranged([row(index, prompt(text, index)) for index, text in enumerate(texts)])]
    assert asked == [3, 0, 1, 4, 5, 2]


def test_a_window_ends_by_bytes_too() -> None:
    rows = [row(index, prompt("z" * (index % 3 * 100))) for index in range(9)]
    asked = [each.index for each in windows(rows, Window(160, 300))]
    assert sorted(asked) == list(range(9))
    assert asked[0] == 0, "the first window has a sixteenth of the bytes, and so one row"
    assert asked[1:3] == [2, 1]
    assert asked[3:] == [5, 4, 3, 8, 7, 6]
