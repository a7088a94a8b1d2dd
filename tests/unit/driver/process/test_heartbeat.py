"""The beats that mean a hung engine, with a clock that tests control."""

from __future__ import annotations

import pytest

from plimsoll_runtime.driver.process.heartbeat import CHECK_SECONDS, Beat, Watch

SECOND = 1_000_000_000
START = 1000 * SECOND


class World:
    """A clock, an engine's beat and a watch that checks it once a second."""

    def __init__(self, timeout: float = 60.0) -> None:
        self.now = START
        self.beat = Beat(0, 0)
        self.sent = 0
        self.watch = Watch(timeout, lambda: self.now)

    def busy(self, seconds: float) -> None:
        """The engine takes all commands, and announces to be busy for `seconds`."""
        self.beat = Beat(self.now + int(seconds * SECOND), self.sent)

    def rests(self) -> None:
        self.beat = Beat(0, self.sent)

    def passes(self, seconds: float) -> bool:
        """Return whether the engine counts as hung at any check in that time."""
        hung = False
        for _ in range(int(seconds / CHECK_SECONDS)):
            self.now += int(CHECK_SECONDS * SECOND)
            hung = hung or self.watch.is_hung(self.beat, self.sent)
        return hung

    def stands_still(self, seconds: float) -> bool:
        """Stop the watcher for `seconds`; return whether the engine counts as hung afterwards."""
        self.now += int(seconds * SECOND)
        return self.watch.is_hung(self.beat, self.sent)


def test_an_idle_hour_is_none_of_its_business() -> None:
    world = World()
    world.rests()
    assert not world.passes(3600)


def test_a_load_of_an_hour_is_none_either() -> None:
    world = World()
    assert not world.passes(3600)
    assert not world.stands_still(3600)


def test_a_step_that_is_not_over_in_its_time() -> None:
    world = World()
    world.busy(60)
    assert not world.passes(59)
    assert world.passes(3)


def test_a_long_step_that_said_so() -> None:
    world = World()
    world.busy(2000)
    assert not world.passes(1999)
    world.busy(2000)
    assert not world.passes(1999)


def test_steps_that_go_on_for_a_day() -> None:
    world = World()
    for _ in range(24 * 60 * 2):
        world.busy(60)
        assert not world.passes(30)


@pytest.mark.parametrize("asks", [False, True], ids=["one request", "one a second"])
def test_an_idle_engine_that_reads_no_request(asks: bool) -> None:
    world = World()
    world.rests()
    assert not world.passes(600)
    world.sent += 1
    hung_at = next(second for second in range(200) if _ask_on(world, asks))
    assert 60 <= hung_at <= 62


def _ask_on(world: World, asks: bool) -> bool:
    world.sent += asks
    return world.passes(1)


def test_an_engine_that_reads_its_requests_between_two_looks_is_seen_idle_each_time() -> None:
    world = World()
    for _ in range(600):
        world.rests()
        world.sent += 1
        assert not world.passes(1)


def test_commands_that_wait_for_a_long_step_are_no_sign() -> None:
    world = World()
    world.busy(500)
    world.sent += 3
    assert not world.passes(499)


@pytest.mark.parametrize("stopped", [70, 600, 86_400])
def test_whoever_was_stopped_itself_gives_the_engine_its_time(stopped: int) -> None:
    """Both were stopped in the middle of a step: the engine keeps the rest of its time."""
    world = World()
    world.busy(60)
    assert not world.passes(10)
    assert not world.stands_still(stopped)
    assert not world.passes(45)
    assert world.passes(10)


def test_a_request_that_waited_while_the_server_was_stopped_has_its_time_too() -> None:
    world = World()
    world.rests()
    world.sent += 1
    assert not world.passes(30)
    assert not world.stands_still(600)
    assert not world.passes(25)
    assert world.passes(10)


def test_a_starved_server_still_notices() -> None:
    world = World()
    world.busy(60)
    checks = [world.stands_still(5) for _ in range(100)]
    assert any(checks)
    assert not any(checks[:12])


def test_time_lost_in_one_step_is_no_credit_in_the_next() -> None:
    world = World()
    world.busy(60)
    assert not world.passes(10)
    assert not world.stands_still(600)
    world.busy(60)
    assert not world.passes(59)
    assert world.passes(3)


def test_no_timeout_is_for_ever() -> None:
    world = World(timeout=0)
    world.busy(0)
    assert not world.passes(3600)
