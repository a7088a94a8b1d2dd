"""The number of concurrent fetches of a host."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from model_support.hub import MAIN, Hub, serving, use

from plimsoll_runtime.driver import hub_fetch as module
from plimsoll_runtime.driver.hub_fetch import HubFetch
from plimsoll_runtime.errors import SourceError
from plimsoll_runtime.residency.engines.processes import FETCH_BYTES, Fetches


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setattr(module, "AGAIN_SECONDS", 0.01)
    with serving(Hub()) as made:
        use(made, tmp_path, monkeypatch)
        yield made


def test_as_many_as_there_is_memory_for_and_one_at_least() -> None:
    left = 0
    fetches = Fetches(lambda: left)
    one, two, three = (HubFetch(fetches) for _ in range(3))
    assert fetches.enter(one)
    assert not fetches.enter(two)
    left = 2 * FETCH_BYTES - 1
    assert not fetches.enter(two), "the first one takes its own of that soon"
    left = 2 * FETCH_BYTES
    assert fetches.enter(two)
    assert not fetches.enter(three)
    fetches.leave(one)
    assert fetches.enter(three)
    for fetch in (two, three):
        fetches.leave(fetch)
    left = 0
    assert fetches.enter(one)


def test_one_that_waits_begins_once_another_has_ended_and_can_be_called_off(hub: Hub) -> None:
    fetches = Fetches(lambda: 0)
    first = HubFetch()
    assert fetches.enter(first)
    waiting, given_up = fetches.new(), fetches.new()
    given_up.call_off()
    with pytest.raises(SourceError, match="the fetch of hf://org/model was cancelled"):
        given_up("org/model", None, None)
    found: list[Path] = []
    thread = threading.Thread(target=lambda: found.append(waiting("org/model", None, None)), daemon=True)
    thread.start()
    assert hub.asked == []
    fetches.leave(first)
    thread.join(60)
    assert [path.name for path in found] == [MAIN]
    assert fetches.enter(first), "it has left"
