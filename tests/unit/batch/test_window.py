"""In which order rows are asked: all of them, those that begin alike side by side, the longest first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from plimsoll_runtime.batch.row import Row
from plimsoll_runtime.batch.window import SHARED, Window, arranged, windows


def row(index: int, data: bytes) -> Row:
    return Row(index, index, "f", index + 1, len(data), data)


def prompt(text: str, index: int = 0) -> bytes:
    return b'{"custom_id": "%d", "prompt": "%s"}' % (index, text.encode())


@given(st.lists(st.sampled_from(["a" * 300, "b" * 300, "c"]), max_size=40), st.integers(1, 10))
def test_every_row_comes_once_and_none_leaves_its_window(texts: list[str], size: int) -> None:
    rows = [row(index, prompt(text, index)) for index, text in enumerate(texts)]
    asked = list(windows(rows, Window(size, 10**9)))
    for start in range(0, len(rows), size):
        assert sorted(asked[start : start + size], key=lambda each: each.index) == rows[start : start + size]


def test_what_begins_alike_stands_side_by_side() -> None:
    one, other = "x" * SHARED, "y" * SHARED
    texts = [one + "1", other + "2" * 50, "short", one + "3" * 90, other + "4", "a longer one of its own"]
    asked = [each.index for each in arranged([row(index, prompt(text, index)) for index, text in enumerate(texts)])]
    assert asked == [3, 0, 1, 4, 5, 2]


def test_a_window_ends_by_bytes_too() -> None:
    rows = [row(index, prompt("z" * (index % 3 * 100))) for index in range(9)]
    asked = list(windows(rows, Window(100, 300)))
    assert sorted(asked, key=lambda each: each.index) == rows
    assert {each.index for each in asked[:3]} == {0, 1, 2}
