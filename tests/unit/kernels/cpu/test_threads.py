"""Whose threads compute: torch's, or the kernels'."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from plimsoll_kernels.cpu.threads import lent, share, take_over, thread_count


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = thread_count()
    yield
    share(before)


def test_the_kernels_have_as_many_as_torch() -> None:
    share(3)
    assert thread_count() == torch.get_num_threads() == 3
    torch.set_num_threads(2)
    assert thread_count() == 2


def test_taken_over_until_they_are_shared_again() -> None:
    share(3)
    take_over()
    assert (thread_count(), torch.get_num_threads()) == (3, 1)
    take_over()
    assert (thread_count(), torch.get_num_threads()) == (3, 1)
    share(2)
    assert (thread_count(), torch.get_num_threads()) == (2, 2)


def test_lent_for_a_while_even_if_that_fails() -> None:
    share(3)
    take_over()
    seen = []

    def look() -> None:
        seen.append((thread_count(), torch.get_num_threads()))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), lent():
        look()
    assert [*seen, (thread_count(), torch.get_num_threads())] == [(3, 3), (3, 1)]
