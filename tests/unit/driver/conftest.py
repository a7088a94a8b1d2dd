"""The child process finds the fake engine and its simulated runner where pytest finds them."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from plimsoll_runtime.driver.forkserver import ForkServer

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), str(HERE.parent / "engine")]))


@pytest.fixture
async def server() -> AsyncIterator[ForkServer]:
    made = ForkServer.spawn()
    yield made
    made.close()
