"""A plugin of pytest (`-p gpu_support.progress`): what passed before is left out, and each outcome is kept at once.

`--done` has names of tests, a line each; what became of the others is appended to `--outcomes`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu.harness.outcomes import line


def pytest_addoption(parser: pytest.Parser) -> None:
    """The two files."""
    parser.addoption("--done", type=Path, metavar="FILE", help="leave out the tests that this file names")
    parser.addoption("--outcomes", type=Path, metavar="FILE", help="append what becomes of each test")


def pytest_configure(config: pytest.Config) -> None:
    """Outcomes are written where all of them arrive: not in a process that others are divided among."""
    path: Path | None = config.getoption("--outcomes")
    if path is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Keeper(path))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is done."""
    path: Path | None = config.getoption("--done")
    if path is None or not path.is_file():
        return
    done = set(path.read_text(encoding="utf-8").splitlines())
    left = [item for item in items if item.nodeid not in done]
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in done])
    items[:] = left


class _Keeper:
    """Writes an outcome once it is known."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test's call, or whatever kept it from it or went wrong after it."""
        if report.when != "call" and report.outcome == "passed":
            return
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line(report.nodeid, report.outcome, reason.removeprefix("Skipped: ")))
