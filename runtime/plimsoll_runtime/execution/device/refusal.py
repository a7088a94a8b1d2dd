"""Why no GPU can be used though one must be, in one message: what was found, and what to do."""

from __future__ import annotations

from plimsoll_runtime.execution.device.facts import DeviceFacts
from plimsoll_runtime.execution.device.fault import LOOK_FOR_XID
from plimsoll_runtime.execution.device.findings import findings

NONE_USED = "no GPU can be used"
WANTED = "models are to run on a GPU (--device cuda), and torch finds none"
NO_DRIVER = (
    "no NVIDIA driver is seen here: give the container a GPU (spec.resources.accelerator; --gpus for docker), or "
    "install the GPU's driver"
)
NOT_STARTED = "the NVIDIA driver is there (CUDA {0}.{1}) and starts no GPU: where one was used before, " + LOOK_FOR_XID
OTHERWISE = "to run models on the CPU, give --device cpu (in a cluster, no spec.resources.accelerator)"


def refusal(facts: DeviceFacts, told: str) -> str:
    """Of a machine on which torch finds no GPU; `told`: what torch says of it itself."""
    found = [each.text for each in findings(facts, NONE_USED)]
    if not found:
        found = [NO_DRIVER if facts.driver_cuda is None else NOT_STARTED.format(*facts.driver_cuda)]
    return "; ".join([f"{WANTED}: {told.rstrip('.')}", *found, OTHERWISE])
