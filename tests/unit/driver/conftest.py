"""The child process finds the fake engine and its simulated runner where pytest finds them."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from plimsoll_runtime.driver import linked
from plimsoll_runtime.driver.forkserver import ForkServer

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    # A machine under load must not make a killed process one that is not gone at once.
    monkeypatch.setattr(linked, "AT_ONCE_SECONDS", 60.0)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), str(HERE.parent / "engine")]))


@pytest.fixture
async def server() -> AsyncIterator[ForkServer]:
    made = ForkServer.spawn()
    yield made
    made.close()
