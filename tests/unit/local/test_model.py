from __future__ import annotations

from typing import Any

import pytest

from plimsoll_runtime.local.model import rank_arguments, serve_arguments


@pytest.mark.parametrize(
    ("spec", "arguments"),
    [
        ({"model": {"source": "demo://gemma-3-270m"}}, ["demo://gemma-3-270m", "--name", "obj"]),
        ({"model": {"source": "file:///models/a b"}}, ["/models/a b", "--name", "obj"]),
        (
            {"model": {"source": "hf://a/b", "revision": "main", "servedNames": ["x", "y"]}},
            ["hf://a/b", "--revision", "main", "--name", "x", "--name", "y"],
        ),
        (
            {
                "model": {"source": "hf://a/b"},
                "runtime": {"maxModelLen": 4096, "kvMemory": "40%", "drainSeconds": 5, "policy": "sjf"},
            },
            [
                *("hf://a/b", "--name", "obj", "--drain-seconds", "5", "--kv-memory", "40%", "--max-model-len", "4096"),
                *("--policy", "sjf"),
            ],
        ),
        (
            {"model": {"source": "hf://a/b"}, "runtime": {"prefixCaching": False}},
            ["hf://a/b", "--name", "obj", "--no-prefix-caching"],
        ),
        (
            {"model": {"source": "hf://a/b"}, "runtime": {"prefixCaching": True}},
            ["hf://a/b", "--name", "obj", "--prefix-caching"],
        ),
    ],
)
def test_the_mechanical_rule(spec: dict[str, Any], arguments: list[str]) -> None:
    assert serve_arguments("obj", spec) == tuple(arguments)


@pytest.mark.parametrize(
    ("parallel", "arguments"),
    [
        ({}, ["--tensor-parallel", "1", "--pipeline-parallel", "1"]),
        ({"tensor": 2, "pods": 2}, ["--tensor-parallel", "2", "--pipeline-parallel", "1"]),
        (
            {"tensor": 2, "pipeline": 3, "recoverSeconds": 60},
            ["--tensor-parallel", "2", "--pipeline-parallel", "3", "--recover-seconds", "60"],
        ),
    ],
)
def test_all_ranks_of_a_replica_are_one_server(parallel: dict[str, Any], arguments: list[str]) -> None:
    assert rank_arguments({"parallel": parallel}) == tuple(arguments)
    assert rank_arguments({}) == ()
