"""Lets processes that these tests spawn import the functions that they run."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the repository on the path. A spawned process finds a function by the name of its module, tests.unit...."""
    monkeypatch.syspath_prepend(Path(__file__).parents[3])
