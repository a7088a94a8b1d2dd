"""Ranks are killed and stopped at random instants under load: no request is lost, and every text is right."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path
from random import Random

import psutil
import pytest
from groups_support.ranks import OPTIONS, SECONDS, children_of, health, ranks_of, text, until
from model_support.tiny import make_model, save_model
from server_support.process import Served, serving

KILLS = 50
SHARED_MEMORY = Path("/dev/shm")
CLIENTS = 6
TOKENS = 60
LONGEST = 30.0
"""Seconds that a text may take, with several losses in a row."""


class Client(threading.Thread):
    """Asks for the same text again and again; `wrong` are the other texts that it got."""

    def __init__(self, server: Served, number: int, ended: threading.Event) -> None:
        super().__init__()
        self._server = server
        self._prompt = [number + 1, 3, 5] * (number + 1)
        self._number = number
        self._ended = ended
        self.expected = self._ask()
        self.texts = 0
        self.longest = 0.0
        self.wrong: list[str] = []

    def run(self) -> None:
        while not self._ended.is_set():
            began = time.monotonic()
            found = self._ask()
            self.longest = max(self.longest, time.monotonic() - began)
            self.texts += 1
            if found != self.expected:
                self.wrong.append(found)

    def _ask(self) -> str:
        return text(self._server, self._prompt, TOKENS, self._number)


@pytest.mark.long
def test_no_request_is_lost(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    save_model(make_model("LlamaConfig", {"head_dim": 16, "hidden_size": 64}), folder)
    random, ended = Random(35), threading.Event()
    segments = set(SHARED_MEMORY.iterdir())
    with serving(folder, tmp_path / "log", *OPTIONS, "--step-timeout", "1") as server:
        # The log of all losses would fill the pipe.
        reading = threading.Thread(target=server.end)
        reading.start()
        processes = [server.engine(), *children_of(server).values()]
        clients = [Client(server, number, ended) for number in range(CLIENTS)]
        for client in clients:
            client.start()
        killed = 0
        while killed < KILLS:
            # A random instant: also while ranks are being replaced.
            ended.wait(random.uniform(0.0, 1.5))
            ranks = list(ranks_of(server).values())
            if not ranks:
                continue
            try:
                random.choice(ranks).send_signal(random.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP]))
            except psutil.NoSuchProcess:
                continue
            killed += 1
        until(lambda: health(server) == 200)
        ended.set()
        for client in clients:
            client.join(SECONDS)
            assert not client.is_alive()
            assert not client.wrong
            assert client.texts > 0
            assert client.longest < LONGEST
        assert len(ranks_of(server)) == 2
        processes += ranks_of(server).values()
        server.process.terminate()
        reading.join(SECONDS)
        assert server.process.returncode == 0
    _, alive = psutil.wait_procs(processes, SECONDS)
    assert not alive
    assert set(SHARED_MEMORY.iterdir()) <= segments
