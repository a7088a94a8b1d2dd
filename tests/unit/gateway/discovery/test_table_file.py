from __future__ import annotations

import copy
import errno
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from plimsoll_cluster.objectives import NO_OBJECTIVES, LatencyObjective, Objectives
from plimsoll_gateway.discovery.routing_table import TableStore
from plimsoll_gateway.discovery.table_file import TableFile, TableFileError, parse_table

ENTRY: dict[str, Any] = {
    "namespace": "default",
    "name": "gemma",
    "servedNames": ["gemma", "g"],
    "created": "2026-01-01T00:00:00+00:00",
    "message": "",
    "replicas": [{"id": "gemma-0", "url": "http://127.0.0.1:9/", "ready": True}],
}


def text(*entries: dict[str, Any]) -> str:
    return json.dumps({"models": list(entries)})


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in ENTRY.items() if name != key}


def test_a_table() -> None:
    table = parse_table(text(ENTRY))
    assert table.names() == ("g", "gemma")
    (replica,) = table.models[0].replicas
    assert (replica.id, replica.url, replica.ready, replica.names) == ("gemma-0", "http://127.0.0.1:9", True, None)
    assert table.models[0].objectives == NO_OBJECTIVES


def test_objectives_are_those_of_a_model_deployment() -> None:
    objectives = {"availability": "99.9%", "ttftMilliseconds": 500, "ttftShare": "99%", "itlMilliseconds": 80}
    (model,) = parse_table(text(ENTRY | {"objectives": objectives})).models
    assert model.objectives == Objectives(0.999, LatencyObjective(0.5, 0.99), LatencyObjective(0.08, 0.95))


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("", "Input data was truncated"),
        ("[" * 100_000 + "]" * 100_000, "Expected `object`, got `array`"),
        ("[]", "Expected `object`, got `array`"),
        ("{}", "missing required field `models`"),
        ('{"models": {}}', r"Expected `array`, got `object` - at `\$.models`"),
        (text(without("message")), r"missing required field `message` - at `\$.models\[0\]`"),
        (text(ENTRY | {"nam": 1}), r"unknown field `nam` - at `\$.models\[0\]`"),
        (text(ENTRY | {"name": 1}), r"Expected `str`, got `int` - at `\$.models\[0\].name`"),
        (text(ENTRY | {"servedNames": [""]}), r"length >= 1 - at `\$.models\[0\].servedNames\[0\]`"),
        (text(ENTRY | {"created": "yesterday"}), "Invalid RFC3339 encoded datetime"),
        (text(ENTRY | {"created": "2026-01-01T00:00:00"}), "Expected `datetime` with a timezone"),
        (
            text(ENTRY | {"replicas": [{"id": "a", "url": "ftp://x", "ready": True}]}),
            r"matching regex .*replicas\[0\].url",
        ),
        (
            text(ENTRY | {"replicas": [{"id": "a", "url": "http://x", "ready": 1}]}),
            r"Expected `bool`, got `int` - at .*\.ready",
        ),
        (text(ENTRY | {"objectives": {"availability": "100%"}}), r"matching regex .*objectives.availability"),
        (text(ENTRY | {"objectives": {"ttftMilliseconds": 0}}), r"`int` >= 1 - at .*objectives.ttftMilliseconds"),
        (text(ENTRY | {"objectives": {"ttft": 1}}), r"unknown field `ttft` - at `\$.models\[0\].objectives`"),
        (text(ENTRY, ENTRY), "default/gemma is listed twice"),
    ],
)
def test_what_is_not_a_table_says_where(content: str, what: str) -> None:
    with pytest.raises(TableFileError, match=what):
        parse_table(content)


def replace(path: Path, content: str) -> None:
    """Replace the file atomically."""
    fresh = path.with_suffix(".new")
    fresh.write_text(content)
    fresh.replace(path)


def test_a_changed_file_is_read_and_a_broken_one_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, store = tmp_path / "table.json", TableStore()
    source = TableFile(path, store)
    source.refresh()
    source.refresh()
    assert len(caplog.records) == 1
    replace(path, text(ENTRY))
    source.refresh()
    first = store.current
    assert first is not None
    source.refresh()
    assert store.current is first
    caplog.clear()
    replace(path, text(ENTRY)[:40])
    source.refresh()
    source.refresh()
    assert store.current is first
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    other = copy.deepcopy(ENTRY) | {"servedNames": ["other"]}
    replace(path, text(other))
    source.refresh()
    second = store.current
    assert second.names() == ("other",)
    path.unlink()
    source.refresh()
    assert store.current is second


def test_a_file_that_cannot_be_read_for_a_while_is_read_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, store = tmp_path / "table.json", TableStore()
    replace(path, text(ENTRY))
    source = TableFile(path, store)

    def fails(_: Path) -> bytes:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as broken:
        broken.setattr(Path, "read_bytes", fails)
        source.refresh()
        source.refresh()
    assert store.find("gemma") is None
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "Too many open files" in caplog.text
    source.refresh()
    assert store.find("gemma") is not None
    replace(path, "\xff")
    caplog.clear()
    source.refresh()
    source.refresh()
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
