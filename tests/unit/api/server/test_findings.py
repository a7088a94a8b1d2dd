"""Findings about a device are written to a file, and never returned over HTTP."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from plimsoll_runtime.api.server.server import write_findings
from plimsoll_runtime.cli.main import build_parser
from plimsoll_runtime.cli.serve import server_config


def test_a_line_each(tmp_path: Path) -> None:
    write_findings(tmp_path / "f", ["held by\npid 7", "no bfloat16"])
    assert (tmp_path / "f").read_text() == "held by pid 7\nno bfloat16\n"
    write_findings(None, ["nobody asks"])


def test_a_file_that_cannot_be_written_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        write_findings(tmp_path / "no folder" / "f", ["x"])
    assert "cannot be written" in caplog.text


def test_the_environment_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    args = build_parser().parse_args(["serve", "model"])
    monkeypatch.delenv("PLIMSOLL_FINDINGS", raising=False)
    assert server_config(args).findings_file is None
    monkeypatch.setenv("PLIMSOLL_FINDINGS", str(tmp_path))
    assert server_config(args).findings_file == tmp_path


async def test_a_server_that_is_ready_has_written_them(
    run_server: Callable[..., Any], make_engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = make_engine.__init__

    def with_findings(self: Any, *given: Any) -> None:
        plain(self, *given)
        self.info = msgspec.structs.replace(self.info, findings=("held by pid 7",))

    monkeypatch.setattr(make_engine, "__init__", with_findings)
    async with run_server(findings_file=tmp_path / "f") as server, server.http() as http:
        assert (tmp_path / "f").read_text() == "held by pid 7\n"
        for path in ("/health", "/v1/models", "/metrics"):
            assert "pid 7" not in (await http.get(path)).text
