"""A pytest plugin (`-p gpu_support.progress`) that skips tests that passed before and writes each outcome immediately.

`--done` is a file of test names, one a line; the outcomes of the others are appended to the file `--outcomes`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu.harness.outcomes import line


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the two files."""
    parser.addoption("--done", type=Path, metavar="FILE", help="leave out the tests that this file names")
    parser.addoption("--outcomes", type=Path, metavar="FILE", help="append each test's outcome")


def pytest_configure(config: pytest.Config) -> None:
    """Write outcomes in the controlling process only, where all of them arrive."""
    path: Path | None = config.getoption("--outcomes")
    if path is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Keeper(path))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests that passed before."""
    path: Path | None = config.getoption("--done")
    if path is None or not path.is_file():
        return
    done = set(path.read_text(encoding="utf-8").splitlines())
    left = [item for item in items if item.nodeid not in done]
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in done])
    items[:] = left


class _Keeper:
    """Writes each outcome."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Write the outcome of a test's call, or of a failed setup or teardown."""
        if report.when != "call" and report.outcome == "passed":
            return
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line(report.nodeid, report.outcome, reason.removeprefix("Skipped: ")))
