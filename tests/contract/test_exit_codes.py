"""The operator understands the runtime's exit codes and termination messages."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from plimsoll_operator.build.image import Image
from plimsoll_operator.build.model import build_pod
from plimsoll_operator.spec.model_deployment import DRAIN_SECONDS, read_spec
from plimsoll_operator.status.pod_failure import LAST_WORDS
from plimsoll_operator.status.reasons import EXIT_REASONS, NOT_LOADED, Reason
from plimsoll_runtime.cli.main import build_parser, main
from plimsoll_runtime.errors import ErrorKind, PlimsollError
from plimsoll_runtime.utils.process_exit import write_last_words

REASONS = {
    ErrorKind.USAGE: Reason.INVALID_OPTIONS,
    ErrorKind.SOURCE: Reason.MODEL_SOURCE_NOT_FOUND,
    ErrorKind.MODEL: Reason.MODEL_INVALID,
    ErrorKind.MEMORY: Reason.OUT_OF_MEMORY,
    ErrorKind.ENGINE: Reason.ENGINE_DIED,
    ErrorKind.DEVICE: Reason.DEVICE_FAILED,
    ErrorKind.FETCH: Reason.MODEL_FETCH_FAILED,
    ErrorKind.ADDRESS: Reason.INVALID_OPTIONS,
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
    assert container["terminationMessagePolicy"] == "File"


@pytest.mark.parametrize("kind", [*ErrorKind, None])
def test_the_operator_knows_how_last_words_begin(kind: ErrorKind | None, tmp_path: Path) -> None:
    """The operator treats other prefixes as logs. Python exits with 1 after an error without a kind."""
    error: Exception = RuntimeError("a fault") if kind is None else PlimsollError("a fault")
    if kind is not None:
        error.kind = kind  # type: ignore[attr-defined]
    write_last_words(str(tmp_path / "words"), error)
    code = 1 if kind is None else kind.exit_code
    assert (tmp_path / "words").read_text() == f"{LAST_WORDS[code]}: a fault"


@pytest.mark.parametrize(
    "options", [["--no-such-option"], ["--port", "none"], ["--name", "a", "--name", "a"], ["--tls-key", "k"]]
)
def test_options_that_cannot_be_used_are_last_words(
    options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They end the process before it serves."""
    words = tmp_path / "words"
    monkeypatch.setenv("PLIMSOLL_TERMINATION_LOG", str(words))
    with pytest.raises(SystemExit) as end:
        sys.exit(main(["serve", "model", *options]))
    assert end.value.code == ErrorKind.USAGE.exit_code
    assert words.read_text().startswith(f"{LAST_WORDS[2]}: ")
    assert options[0] in words.read_text()
