"""Makes the fake engine and its simulated runner importable in child processes."""

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from plimsoll_kernels.cpu import library
from plimsoll_kernels.cpu.threads import share, thread_count
from plimsoll_runtime.driver.process import control_socket
from plimsoll_runtime.driver.process.standby import ForkServer
from plimsoll_runtime.weights.image import Image

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    given = filter(None, [os.environ.get("PYTHONPATH")])
    # On a machine under load, a killed process must not count as one that does not end.
    monkeypatch.setattr(control_socket, "AT_ONCE_SECONDS", 60.0)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), str(HERE.parent / "engine"), *given]))


@pytest.fixture
def kernels_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo an engine's choice of CPU kernels, which lasts as long as the process."""
    monkeypatch.setattr(library._chosen, "name", None)


@pytest.fixture
def threads_as_before() -> Iterator[None]:
    """Undo an engine's choice of threads, which lasts as long as the process."""
    before = thread_count()
    yield
    share(before)


@pytest.fixture
def image() -> Iterator[Image]:
    made = Image.create(2**24, "m")
    yield made
    made.close()


@pytest.fixture
async def server() -> AsyncIterator[ForkServer]:
    made = ForkServer.spawn()
    yield made
    made.close()
