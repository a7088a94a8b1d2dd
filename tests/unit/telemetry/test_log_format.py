"""The two forms of log lines."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll_telemetry.log_format import JsonLines, TextLines, formatter
from plimsoll_telemetry.log_subject import SUBJECT, LogSubject


def record(message: str, *values: object, **more: object) -> logging.LogRecord:
    made = logging.getLogger("x.y").makeRecord("x.y", logging.WARNING, "", 0, message, values, None)
    made.__dict__ |= more
    return made


@pytest.fixture
def subject() -> Iterator[LogSubject]:
    found = LogSubject("r1", "4bf92f3577b34da6a3ce929d0e0e4736")
    token = SUBJECT.set(found)
    yield found
    SUBJECT.reset(token)


def test_a_line_of_json_has_the_component_and_the_ids_of_its_task(subject: LogSubject) -> None:
    subject.model = "ns/m"
    line = json.loads(JsonLines("gateway").format(record("it %s", "failed")))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[.]\d{3}[+]00:00", line.pop("time"))
    assert line == {
        "level": "WARNING",
        "component": "gateway",
        "logger": "x.y",
        "message": "it failed",
        "request_id": "r1",
        "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
        "model": "ns/m",
    }


def test_own_fields_precede_those_of_the_task(subject: LogSubject) -> None:
    line = json.loads(JsonLines("runtime").format(record("done", fields={"request_id": "r2", "status": 200})))
    assert (line["request_id"], line["status"]) == ("r2", 200)
    assert line["trace_id"] == subject.trace_id


def test_a_line_outside_of_requests_has_no_ids() -> None:
    assert json.loads(JsonLines("operator").format(record("idle"))).keys() == {
        "time",
        "level",
        "component",
        "logger",
        "message",
    }
    assert TextLines("operator").format(record("idle")).endswith(" WARNING operator x.y: idle")


def test_a_line_of_text_ends_with_the_ids(subject: LogSubject) -> None:
    text = TextLines("gateway").format(record("replica %s failed", "a"))
    assert text.endswith(
        "WARNING gateway x.y: replica a failed (request_id=r1, trace_id=" + str(subject.trace_id) + ")"
    )
    assert TextLines("gateway").format(record("r1 GET", fields={})).endswith(": r1 GET"), "its message has them"


def test_a_traceback_follows_its_line() -> None:
    try:
        raise ValueError("why")
    except ValueError:
        made = record("it failed")
        made.exc_info = sys.exc_info()
    line = json.loads(formatter("json", "host").format(made))
    assert line["error"].endswith("ValueError: why")
    first, *_, last = formatter("text", "host").format(made).splitlines()
    assert first.endswith("host x.y: it failed")
    assert last == "ValueError: why"


@given(st.text())
def test_a_message_is_one_line(text: str) -> None:
    assert len(TextLines("member").format(record("%s|", text)).splitlines()) == 1
    whole = JsonLines("member").format(record("%s|", text.encode("utf-8", "replace").decode()))
    assert len(whole.split("\n")) == 1
    assert json.loads(whole)["message"].endswith("|")
