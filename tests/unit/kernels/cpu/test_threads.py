"""The numbers of threads of torch and of the kernels."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from plimsoll_kernels.cpu import threads
from plimsoll_kernels.cpu.threads import lent, share, take_over, thread_count


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = thread_count()
    yield
    share(before)


def test_the_kernels_have_as_many_as_torch_until_somebody_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads._kernels, "threads", None)
    for count in (3, 2):
        torch.set_num_threads(count)
        assert thread_count() == count
    share(4)
    assert thread_count() == torch.get_num_threads() == 4


def test_the_threads_of_an_engine_keep_their_helpers_when_another_is_loaded() -> None:
    """Torch's number in another thread is the one that it started with."""
    share(3)
    take_over()
    with ThreadPoolExecutor(1) as steps:
        assert steps.submit(torch.get_num_threads).result() == 1
        share(3)
        assert steps.submit(thread_count).result() == 3


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
