"""Ctrl-C waits for the end of a block, and then calls the previous handler."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from plimsoll_runtime.offline.interrupts import Uninterrupted

pytestmark = pytest.mark.usefixtures("ctrl_c")

PRESSED = signal.SIGINT


@pytest.fixture
def heard() -> Iterator[list[int]]:
    """The signals that the previous handler has received."""
    numbers: list[int] = []
    before = signal.signal(PRESSED, lambda number, frame: numbers.append(number))
    yield numbers
    signal.signal(PRESSED, before)


def test_it_comes_at_the_end() -> None:
    done: list[int] = []

    def work() -> None:
        with Uninterrupted():
            signal.raise_signal(PRESSED)
            done.append(1)

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done
    assert signal.getsignal(PRESSED) is signal.default_int_handler


def test_it_goes_to_the_handler_that_was_there(heard: list[int]) -> None:
    with Uninterrupted():
        with Uninterrupted():
            signal.raise_signal(PRESSED)
            signal.raise_signal(PRESSED)
        assert heard == []
    assert heard == [PRESSED], "once, however often it came"
    signal.raise_signal(PRESSED)
    assert heard == [PRESSED] * 2


def test_without_an_interrupt_nothing_comes(heard: list[int]) -> None:
    with pytest.raises(ValueError, match="its own"), Uninterrupted():
        raise ValueError("its own")
    assert heard == []


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.SIG_DFL])
def test_what_python_does_not_handle_is_left_alone(handler: signal.Handlers) -> None:
    before = signal.signal(PRESSED, handler)
    try:
        with Uninterrupted():
            assert signal.getsignal(PRESSED) is handler
        assert signal.getsignal(PRESSED) is handler
    finally:
        signal.signal(PRESSED, before)


def test_other_threads_get_no_signals_and_may_set_none(heard: list[int]) -> None:
    inside: list[object] = []

    def work() -> None:
        with Uninterrupted():
            inside.append(signal.getsignal(PRESSED))

    thread = threading.Thread(target=work)
    outside = signal.getsignal(PRESSED)
    thread.start()
    thread.join()
    assert inside == [outside]


def test_a_block_that_lets_it_in_goes_on_where_its_handler_does(heard: list[int]) -> None:
    with Uninterrupted() as held:
        held.let_in()
        signal.raise_signal(PRESSED)
        assert heard == []
        held.let_in()
        held.let_in()
        assert heard == [PRESSED]
        signal.raise_signal(PRESSED)
        assert heard == [PRESSED]
    assert heard == [PRESSED] * 2


def test_a_block_that_lets_it_in_ends_where_its_handler_raises() -> None:
    reached: list[str] = []

    def work() -> None:
        with Uninterrupted() as held:
            signal.raise_signal(PRESSED)
            reached.append("raised")
            held.let_in()
            reached.append("let in")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert reached == ["raised"]
    assert signal.getsignal(PRESSED) is signal.default_int_handler


def test_a_block_that_holds_nothing(heard: list[int]) -> None:
    with Uninterrupted(hold=False) as held:
        signal.raise_signal(PRESSED)
        assert heard == [PRESSED]
        held.let_in()
    assert heard == [PRESSED]


async def test_an_event_loop_hears_of_it_once() -> None:
    """An event loop also gets a signal through a wake-up file."""
    heard: list[int] = []
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(PRESSED, heard.append, PRESSED)
    try:
        with Uninterrupted() as held:
            os.kill(os.getpid(), PRESSED)
            held.let_in()
        for _ in range(3):
            await asyncio.sleep(0)
        assert heard == [PRESSED]
    finally:
        loop.remove_signal_handler(PRESSED)


@pytest.mark.parametrize("then", [signal.default_int_handler, signal.SIG_IGN])
def test_a_handler_may_put_another_in_its_place(then: Any) -> None:
    before = signal.signal(PRESSED, lambda number, frame: signal.signal(PRESSED, then))
    try:
        with Uninterrupted() as held:
            signal.raise_signal(PRESSED)
            held.let_in()
            if then is not signal.SIG_IGN:
                assert signal.getsignal(PRESSED) is not then, "it is held back from that one too"
        assert signal.getsignal(PRESSED) is then
    finally:
        signal.signal(PRESSED, before)
