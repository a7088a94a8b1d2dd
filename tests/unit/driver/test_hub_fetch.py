"""Snapshots are fetched in a separate process, which ends when the fetch is cancelled."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from model_support.hub import MAIN, TOKEN, WEIGHTS, Hub, serving, use

from plimsoll_runtime.driver import hub_fetch as module
from plimsoll_runtime.driver.hub_fetch import HubFetch
from plimsoll_runtime.errors import SourceError
from plimsoll_runtime.weights.sources.hub import Access

SECONDS = 60
"""Time limit for immediate results, on a busy machine."""


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serving(Hub()) as made:
        use(made, tmp_path, monkeypatch)
        yield made


class Fetching(threading.Thread):
    """A fetch in a thread, with its result or error."""

    def __init__(self, fetch: HubFetch) -> None:
        super().__init__(daemon=True)
        self.found: Path | None = None
        self.error: SourceError | None = None
        self._fetch = fetch
        self.start()

    def run(self) -> None:
        try:
            self.found = self._fetch("org/model", None, None)
        except SourceError as error:
            self.error = error

    def end(self) -> None:
        self.join(SECONDS)
        assert not self.is_alive()


def kept(home: Path) -> list[bytes]:
    """Return the contents of all files in the cache, complete or not."""
    return sorted(path.read_bytes() for path in (home / "hub" / "models--org--model" / "blobs").iterdir())


@pytest.mark.long
def test_a_snapshot_and_what_can_be_wrong_with_one(hub: Hub, tmp_path: Path) -> None:
    assert HubFetch()("org/model", None, None) == tmp_path / "hub" / "models--org--model" / "snapshots" / MAIN
    with pytest.raises(SourceError, match=r"hf://org/model@v2: the hub has no revision 'v2' of this model"):
        HubFetch()("org/model", "v2", None)
    private = HubFetch()("org/private", None, Access("team", TOKEN))
    assert private.is_relative_to(tmp_path / "private" / "team")
    with pytest.raises(SourceError, match=r"hf://org/private does not exist \(or is private: check the token"):
        HubFetch()("org/private", None, Access("others", "hf_wrong"))
    with pytest.raises(SourceError, match=r"set spec\.model\.tokenSecret"):
        HubFetch()("org/private", None, Access("guests", ""))


def test_called_off_it_ends_and_keeps_what_is_whole(hub: Hub, tmp_path: Path) -> None:
    hub.stalls = True
    fetch = HubFetch()
    fetching = Fetching(fetch)
    assert hub.stalled.wait(SECONDS)
    assert fetch.anonymous > 2**20
    fetch.call_off()
    fetching.end()
    assert str(fetching.error) == "the fetch of hf://org/model was cancelled"
    assert hub.hung_up.wait(SECONDS)
    assert fetch.anonymous == 0
    assert WEIGHTS[:3] not in kept(tmp_path), "no other fetch would continue it"
    before = set(kept(tmp_path))
    hub.stalls = False
    again = HubFetch()("org/model", None, None)
    assert (again / "model.safetensors").read_bytes() == WEIGHTS
    assert before | {WEIGHTS} <= set(kept(tmp_path))


def test_one_that_does_not_end_is_killed(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "END_SECONDS", 0.01)
    hub.stalls = True
    fetch = HubFetch()
    fetching = Fetching(fetch)
    assert hub.stalled.wait(SECONDS)
    assert fetch._process is not None
    os.kill(fetch._process.pid, signal.SIGSTOP)
    fetch.call_off()
    fetching.end()
    assert "cancelled" in str(fetching.error)


def test_one_that_is_killed_says_so(hub: Hub) -> None:
    hub.stalls = True
    fetch = HubFetch()
    fetching = Fetching(fetch)
    assert hub.stalled.wait(SECONDS)
    assert fetch._process is not None
    os.kill(fetch._process.pid, signal.SIGKILL)
    fetching.end()
    assert "cannot fetch hf://org/model: the fetching process was killed by signal 9" in str(fetching.error)


def test_called_off_before_it_begins_it_starts_no_process(hub: Hub) -> None:
    fetch = HubFetch()
    fetch.call_off()
    with pytest.raises(SourceError, match="cancelled"):
        fetch("org/model", None, None)
    assert hub.asked == []
