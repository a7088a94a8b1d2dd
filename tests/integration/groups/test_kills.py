"""Ranks are killed and stopped at random instants under load: no request is lost, and every text is right."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from random import Random

import psutil
import pytest
from groups_support.clients import Client
from groups_support.ranks import BOTH, OPTIONS, SECONDS, STAGED, children_of, health, ranks_of, until
from model_support.tiny import make_model, save_model
from server_support.process import serving

KILLS = 50
SHARED_MEMORY = Path("/dev/shm")
CLIENTS = 6
TOKENS = 60


def shared_memory() -> list[Path]:
    """Return the files in shared memory, without the semaphores of tests that run at the same time."""
    return [path for path in SHARED_MEMORY.iterdir() if not path.name.startswith("sem.loky-")]


@pytest.mark.long
@pytest.mark.parametrize(("options", "size"), [(OPTIONS, 2), (STAGED, 2), (BOTH, 4)], ids=["tensor", "stages", "both"])
def test_no_request_is_lost(tmp_path: Path, options: tuple[str, ...], size: int) -> None:
    folder = tmp_path / "model"
    save_model(make_model("LlamaConfig", {"head_dim": 16, "hidden_size": 64}), folder)
    random, ended = Random(35), threading.Event()
    segments = set(shared_memory())
    with serving(folder, tmp_path / "log", *options, "--step-timeout", "1") as server:
        # The log of all losses would fill the pipe.
        reading = threading.Thread(target=server.end)
        reading.start()
        processes = [server.engine(), *children_of(server).values()]
        clients = [Client(server, number, TOKENS, ended) for number in range(CLIENTS)]
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
            client.finish()
        assert len(ranks_of(server)) == size
        processes += ranks_of(server).values()
        server.process.terminate()
        reading.join(SECONDS)
        assert server.process.returncode == 0
    _, alive = psutil.wait_procs(processes, SECONDS)
    assert not alive
    assert set(shared_memory()) <= segments
