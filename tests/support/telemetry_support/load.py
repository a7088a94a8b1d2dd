"""Clients that send one request after the other until they are stopped."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx

COMPLETIONS = "/v1/completions"


class Load:
    """Clients of one URL; `statuses` counts their answers, those of broken connections as 0."""

    def __init__(self, url: str) -> None:
        self.statuses: Counter[int] = Counter()
        self._url = url
        self._stopped = threading.Event()
        self._threads: list[threading.Thread] = []

    def add(self, clients: int, body: Mapping[str, Any], pause: float = 0.0) -> None:
        """Add clients that send this body, with this many seconds between an answer and the next request."""
        for _ in range(clients):
            self._threads.append(threading.Thread(target=self._run, args=(dict(body), pause)))
            self._threads[-1].start()

    def stop(self) -> None:
        """Wait until all clients have their last answer."""
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def _run(self, body: dict[str, Any], pause: float) -> None:
        with httpx.Client(base_url=self._url, timeout=120) as client:
            while not self._stopped.is_set():
                try:
                    status = client.post(COMPLETIONS, json=body).status_code
                except httpx.HTTPError:
                    status = 0
                self.statuses[status] += 1
                self._stopped.wait(pause)


@contextmanager
def loading(url: str) -> Iterator[Load]:
    """Yield a load without clients, and stop it afterwards."""
    load = Load(url)
    try:
        yield load
    finally:
        load.stop()
