"""Rows of files: an invalid row has an error and does not affect others."""

from __future__ import annotations

from pathlib import Path

from plimsoll_runtime.batch.inputs import find_inputs
from plimsoll_runtime.batch.job import Shard
from plimsoll_runtime.batch.reader import PromptRule, read_rows


def test_a_line_that_is_no_json_costs_itself(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b'{"a": "x"}\n{"a": "\xd2"}\n' + b'{"a": ' + b"[" * 100_000 + b'\n{\n{"a": "y"}\n')
    rows = list(read_rows(find_inputs(str(path), ()), Shard(0, 1), PromptRule(column="a")))
    assert [(row.fault or "")[:20] for row in rows] == ["", *["is not a JSON object"] * 3, ""]
    assert [b"x" in rows[0].data, b"y" in rows[4].data] == [True, True]
