"""Traces of starts: one for each, with its stages, whether it ends ready or with an error."""

from __future__ import annotations

from itertools import pairwise

from server_support.collected_traces import INFO, CollectedTraces

from plimsoll_runtime.api.telemetry.start_reporter import StartReporter
from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.utils.progress import DOWNLOAD, Transfer
from plimsoll_runtime.utils.start_record import StartRecord
from plimsoll_telemetry import attributes as names


def started(record: StartRecord, error: BaseException | None = None) -> CollectedTraces:
    tracer = CollectedTraces(ratio=0.0)
    reporter = StartReporter(tracer)  # type: ignore[arg-type]
    reporter.ended(record, {names.MODEL: "gemma"}, None if error else INFO, error)
    return tracer


def full_record() -> StartRecord:
    record = StartRecord("load")
    record(DOWNLOAD, 0.1, Transfer(100, 1000))
    record(DOWNLOAD, 1.0, Transfer(1000, 1000))
    record("load weights", 0.0)
    record("load weights", 1.0)
    record("warm-up", 0.0)
    return record


def test_stages_follow_each_other_without_gaps() -> None:
    [[root, *stages]] = started(full_record()).traces
    assert [stage.name for stage in stages] == ["start", "download", "load weights", "warm-up"]
    assert all(stage.parent_id == root.span_id and stage.trace_id == root.trace_id for stage in stages)
    assert all(before.end_ns == after.start_ns for before, after in pairwise(stages))
    assert (root.name, root.parent_id, root.error) == ("load model", 0, None)
    assert (root.start_ns, root.end_ns) == (stages[0].start_ns, stages[-1].end_ns)


def test_a_start_has_the_model_and_what_was_chosen() -> None:
    [[root, *_]] = started(full_record()).traces
    assert root.attributes == {
        names.MODEL: "gemma",
        names.DOWNLOADED_BYTES: 1000,
        names.DEVICE: "cpu",
        names.DTYPE: "bfloat16",
        names.ARCHITECTURE: "A",
        names.ATTENTION_BACKEND: "cpu",
        names.WEIGHT_BYTES: 1000,
        names.KV_BYTES: 2000,
        names.WORKSPACE_BYTES: 0,
    }


def test_a_failed_start_names_the_kind_of_its_error_and_no_text() -> None:
    [[root, *stages]] = started(full_record(), ModelError("/secret/path is damaged")).traces
    assert root.error == stages[-1].error == "model-invalid"
    assert [stage.error for stage in stages[:-1]] == [None, None, None]
    [[root, *_]] = started(StartRecord(), KeyError("x")).traces
    assert root.error == "internal"
