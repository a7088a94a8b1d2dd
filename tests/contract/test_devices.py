"""Accelerators of pods: the runtime finds a GPU, or ends with a message that the operator understands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from plimsoll_operator.build.host import HostKey, build_host
from plimsoll_operator.build.image import Image
from plimsoll_operator.build.model import build_pod
from plimsoll_operator.spec.identity import CONTAINER
from plimsoll_operator.spec.model_deployment import read_spec
from plimsoll_operator.spec.runtime_pool import read_pool
from plimsoll_operator.status.pod_failure import failure_of
from plimsoll_operator.status.reasons import Reason
from plimsoll_runtime.cli.host import host_settings
from plimsoll_runtime.cli.main import build_parser
from plimsoll_runtime.cli.serve import server_config
from plimsoll_runtime.errors import DeviceLostError
from plimsoll_runtime.execution.device.diagnostics import DeviceFacts
from plimsoll_runtime.execution.device.select import refusal
from plimsoll_runtime.utils.process_exit import write_last_words

META = {
    "name": "gemma",
    "namespace": "team",
    "uid": "u",
    "generation": 1,
    "creationTimestamp": "2026-01-01T00:00:00Z",
}
CLAIMED = {"memory": "4Gi", "accelerator": {"resource": "nvidia.com/gpu"}}
CASES = [
    (CLAIMED, "cuda"),
    (CLAIMED | {"accelerator": {"resource": "amd.com/gpu"}}, "cuda"),
    ({"memory": "4Gi"}, "auto"),
]
IDS = ["nvidia", "amd", "none"]


def arguments(pod: dict[str, Any]) -> list[str]:
    (container,) = pod["spec"]["containers"]
    return list(container["args"])


@pytest.mark.parametrize(("resources", "device"), CASES, ids=IDS)
def test_a_models_pod_runs_on_what_it_claims(resources: dict[str, Any], device: str) -> None:
    spec = read_spec({"metadata": META, "spec": {"model": {"source": "demo://gemma-3-270m"}, "resources": resources}})
    words = arguments(build_pod(spec, Image("runtime:1"), "a"))
    assert server_config(build_parser().parse_args(words)).engine.device == device
    assert ("--device" in words) == (device != "auto")


@pytest.mark.parametrize(("resources", "device"), CASES, ids=IDS)
def test_a_pools_pod_runs_on_what_it_claims(resources: dict[str, Any], device: str) -> None:
    pool = read_pool({"metadata": META, "spec": {"resources": resources}})
    words = arguments(build_host(pool, Image("runtime:1"), HostKey(b"o" * 32), "x1"))
    assert host_settings(build_parser().parse_args(words)).device == device
    assert ("--device" in words) == (device != "auto")


def test_that_a_restarted_pod_has_no_gpu_any_more_is_in_the_models_conditions(tmp_path: Path) -> None:
    """The container is restarted with increasing delays, and reports each time why it ended."""
    error = DeviceLostError(refusal(DeviceFacts(driver_cuda=(13, 0), built_for=(13, 0)), "CUDA unknown error"))
    write_last_words(str(tmp_path / "words"), error)
    how = {"exitCode": error.kind.exit_code, "message": (tmp_path / "words").read_text()}
    status = {"containerStatuses": [{"name": CONTAINER, "restartCount": 2, "lastState": {"terminated": how}}]}
    failure = failure_of(status, {})
    assert failure is not None
    assert failure.reason is Reason.DEVICE_FAILED
    assert "torch finds none: CUDA unknown error; the NVIDIA driver (CUDA 13.0) finds no usable GPU" in failure.message
    assert failure.message.endswith(
        "to run models on the CPU, use --device cpu (in a cluster, omit spec.resources.accelerator) (2 restarts)"
    )
