"""The command line of `plimsoll batch`, and its progress display."""

from __future__ import annotations

import argparse
import io
from pathlib import Path
from typing import Any

import pytest

from plimsoll_runtime.batch.job import Answered, Row
from plimsoll_runtime.cli.batch import batch_config, setting, shard
from plimsoll_runtime.cli.main import build_parser
from plimsoll_runtime.cli.progress import board
from plimsoll_runtime.errors import UsageError


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def config(*words: str) -> Any:
    return batch_config(build_parser().parse_args(["batch", "in.jsonl", "out.jsonl", "--model", "M", *words]))


def test_options_become_a_record(tmp_path: Path) -> None:
    (tmp_path / "t.jinja").write_text("{{ a }}")
    made = config("--shards", "1/3", "--set", "max_tokens=5", "--set", "stop=a b", "--unordered", "--name", "n")
    assert (made.shard.index, made.shard.count, made.ordered, made.names) == (1, 3, False, ("n",))
    assert {name: bytes(value) for name, value in made.defaults.items()} == {"max_tokens": b"5", "stop": b'"a b"'}
    made = config("--template", f"@{tmp_path / 't.jinja'}", "--endpoint", "chat", "--id-column", "i")
    assert (made.prompting.template, made.prompting.field, made.prompting.id_column) == ("{{ a }}", "messages", "i")
    assert made.endpoint == "/v1/chat/completions"


@pytest.mark.parametrize(
    "words",
    [
        ["--id-column", "i"],
        ["--template", "@nowhere"],
        ["--prompt-column", "p", "--endpoint", "rerank"],
        ["--max-model-len", "1"],
    ],
)
def test_what_does_not_go_together_is_told(words: list[str]) -> None:
    with pytest.raises(UsageError):
        config(*words)


@pytest.mark.parametrize("text", ["4/4", "-1/2", "1", "a/b", "1/0", "0/0"])
def test_what_is_no_shard(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        shard(text)


@pytest.mark.parametrize("text", ["max_tokens", "=1", "Max=1", "a b=1"])
def test_what_is_no_setting(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        setting(text)


@pytest.mark.parametrize("stream", [Terminal(), io.StringIO()])
def test_a_terminal_sees_rows_and_what_was_before_ends_first(stream: io.StringIO) -> None:
    ended = []
    with board(stream, lambda: ended.append(1)) as shown:
        shown.begin(100, 3)
        assert ended == [1]
        shown.passed(Row(0, 0, "f", 1, 40, b""))
        shown.told(Row(1, 1, "f", 2, 60, b""), Answered(1, b"", True, 10, 5, 2))
    if stream.isatty():
        assert "4 rows, 1 failed" in stream.getvalue()
        assert "50% of prompts cached" in stream.getvalue()
        assert "100 %" in stream.getvalue()
