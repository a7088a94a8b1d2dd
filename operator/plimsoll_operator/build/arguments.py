"""The command line of the runtime: each field of `spec.runtime` is the camelCase of a flag of `plimsoll serve`."""

from __future__ import annotations

import re
from typing import Any

from plimsoll_operator.build.persistence import store_arguments
from plimsoll_operator.spec.identity import PORT
from plimsoll_operator.spec.model_deployment import Spec
from plimsoll_operator.spec.template import claim_name as claim_name
from plimsoll_operator.spec.workload import Workload

CLAIMS = "/models"
ON = frozenset({"prefixCaching"})
"""Options that are on by themselves: `plimsoll serve` has no flag that switches them on."""


def serve_arguments(spec: Spec) -> list[str]:
    """What follows `plimsoll`."""
    arguments = ["serve", model_argument(spec.source), "--host", "0.0.0.0", "--port", str(PORT)]
    if spec.revision:
        arguments += ["--revision", spec.revision]
    if spec.trust_remote_code:
        arguments.append("--trust-remote-code")
    for name in spec.served_names:
        arguments += ["--name", name]
    for field, value in sorted(spec.options.items()):
        arguments += _option(field, value)
    return [*arguments, *store_arguments(spec)]


def device_arguments(spec: Workload) -> list[str]:
    """What `plimsoll serve` and `plimsoll host` are told of the device: a pod that claims a GPU has it, or ends."""
    return ["--device", "cuda"] if spec.accelerator else []


def model_argument(source: str) -> str:
    """MODEL: a claim's path is where it is mounted, a file's path is itself, the rest is for the runtime to resolve."""
    if claim := claim_name(source):
        path = source.removeprefix(f"pvc://{claim}").strip("/")
        return f"{CLAIMS}/{claim}" + (f"/{path}" if path else "")
    return source.removeprefix("file://") if source.startswith("file://") else source


def _option(field: str, value: Any) -> list[str]:
    flag = "--" + re.sub(r"[A-Z]", lambda letter: f"-{letter[0].lower()}", field)
    if value is True:
        return [] if field in ON else [flag]
    if value is False:
        return [f"--no-{flag.removeprefix('--')}"]
    return [flag, str(value)]
