"""What the runtime's exit codes mean to the operator, and how it hears of them."""

from __future__ import annotations

import pytest

from plimsoll_operator.build.image import Image
from plimsoll_operator.build.pod import build_pod
from plimsoll_operator.reasons import EXIT_REASONS, NOT_LOADED, Reason
from plimsoll_operator.spec import DRAIN_SECONDS, read_spec
from plimsoll_runtime.cli.main import build_parser
from plimsoll_runtime.errors import ErrorKind

REASONS = {
    ErrorKind.USAGE: Reason.INVALID_OPTIONS,
    ErrorKind.SOURCE: Reason.MODEL_SOURCE_NOT_FOUND,
    ErrorKind.MODEL: Reason.MODEL_INVALID,
    ErrorKind.MEMORY: Reason.OUT_OF_MEMORY,
    ErrorKind.ENGINE: Reason.ENGINE_DIED,
    ErrorKind.DEVICE: Reason.DEVICE_FAILED,
}


def test_each_kind_of_error_has_its_reason() -> None:
    assert {kind.exit_code: REASONS[kind] for kind in ErrorKind} == EXIT_REASONS


def test_each_is_a_failure_to_load() -> None:
    assert set(EXIT_REASONS.values()) <= NOT_LOADED


def test_codes_are_none_that_a_shell_or_a_signal_gives() -> None:
    assert all(1 < kind.exit_code < 126 for kind in ErrorKind)
    assert len({kind.exit_code for kind in ErrorKind}) == len(ErrorKind)


def test_a_usage_error_is_what_argparse_exits_with() -> None:
    with pytest.raises(SystemExit) as end:
        build_parser().parse_args(["serve", "model", "--no-such-option"])
    assert end.value.code == ErrorKind.USAGE.exit_code


def test_the_runtime_drains_for_as_long_as_the_operator_waits() -> None:
    assert build_parser().parse_args(["serve", "model"]).drain_seconds == DRAIN_SECONDS


def test_the_last_words_are_written_where_the_kubelet_reads_them() -> None:
    item = {
        "metadata": {
            "name": "gemma",
            "namespace": "team",
            "uid": "u",
            "generation": 1,
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {"model": {"source": "demo://gemma-3-270m"}},
    }
    (container,) = build_pod(read_spec(item), Image("runtime:1"), "a")["spec"]["containers"]
    environment = {entry["name"]: entry["value"] for entry in container["env"]}
    assert environment["PLIMSOLL_TERMINATION_LOG"] == container["terminationMessagePath"]
