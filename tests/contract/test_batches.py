"""Files and batches: the gateway knows the runtime's paths, and the example Job uses valid options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from plimsoll_gateway.proxy.files import filed_at
from plimsoll_runtime.api.batches.endpoint import BatchService, batch_routes
from plimsoll_runtime.cli.batch import SOME_FAILED, batch_config
from plimsoll_runtime.cli.main import build_parser
from plimsoll_runtime.errors import ErrorKind

EXAMPLE = Path(__file__).parents[2] / "examples" / "batch.yaml"


@pytest.fixture(scope="module")
def job() -> dict[str, Any]:
    claim, job = yaml.safe_load_all(EXAMPLE.read_text())
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    spec: dict[str, Any] = job["spec"]
    return spec


def test_the_gateway_knows_the_runtimes_paths() -> None:
    methods: dict[str, set[str]] = {}
    for method, path, _ in batch_routes(BatchService()):
        methods.setdefault(path.replace("{file_id}", "x").replace("{batch_id}", "x"), set()).add(method)
    assert {path: set(filed_at(path) or ()) for path in methods} == methods


def test_the_jobs_command_is_one(job: dict[str, Any]) -> None:
    container = job["template"]["spec"]["containers"][0]
    shards = []
    for index in range(job["completions"]):
        words = [word.replace("$(INDEX)", str(index)) for word in container["args"]]
        args = build_parser().parse_args([*container["command"][1:], *words])
        config = batch_config(args)
        assert str(config.output).endswith(f"{index}.jsonl")
        shards.append((config.shard.index, config.shard.count))
    assert shards == [(index, job["completions"]) for index in range(job["completions"])]


def test_an_index_is_not_tried_again_for_what_stays(job: dict[str, Any]) -> None:
    [codes] = [rule["onExitCodes"] for rule in job["podFailurePolicy"]["rules"] if "onExitCodes" in rule]
    lasting = [kind.exit_code for kind in (ErrorKind.USAGE, ErrorKind.SOURCE, ErrorKind.MODEL)]
    assert codes["values"] == [*lasting, SOME_FAILED]
    assert SOME_FAILED not in [kind.exit_code for kind in ErrorKind]
