"""Samples the cluster at intervals while a scenario does other things."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

INTERVAL = 0.2


@contextlib.contextmanager
def sampled(look: Callable[[], None]) -> Iterator[None]:
    """Call `look` every INTERVAL seconds in another thread within the context. Samples that fail because the API server
    is away are left out.
    """
    stop = threading.Event()

    def run() -> None:
        while not stop.wait(INTERVAL):
            with contextlib.suppress(ApiException, HTTPError):
                look()

    thread = threading.Thread(target=run, name="sampling")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
