"""The runtime's command line: each field of `spec.runtime` is the name of a flag of `plimsoll serve` in camelCase."""

from __future__ import annotations

import re
from typing import Any

from plimsoll_operator.build.persistence import store_arguments
from plimsoll_operator.spec.identity import METRICS_PORT, PORT
from plimsoll_operator.spec.model_deployment import Spec
from plimsoll_operator.spec.template import claim_name as claim_name
from plimsoll_operator.spec.workload import Workload

CLAIMS = "/models"
ON = frozenset({"prefixCaching"})
"""Options that are on by default: `plimsoll serve` has no flag to switch them on."""


def serve_arguments(spec: Spec) -> list[str]:
    """Return the runtime's command line after `plimsoll`, without the device option."""
    arguments = ["serve", model_argument(spec.source), *listen_arguments(), "--deployment", str(spec.key)]
    if spec.revision:
        arguments += ["--revision", spec.revision]
    if spec.trust_remote_code:
        arguments.append("--trust-remote-code")
    for name in spec.served_names:
        arguments += ["--name", name]
    for field, value in sorted(spec.options.items()):
        arguments += _option(field, value)
    return [*arguments, *store_arguments(spec)]


def listen_arguments() -> list[str]:
    """Return the options for the ports of the API and of the metrics."""
    return ["--host", "0.0.0.0", "--port", str(PORT), "--metrics-port", str(METRICS_PORT)]


def device_arguments(spec: Workload) -> list[str]:
    """Return `--device cuda` for a pod with an accelerator, so that it fails instead of falling back to the CPU; else
    nothing.
    """
    return ["--device", "cuda"] if spec.accelerator else []


def model_argument(source: str) -> str:
    """Return the MODEL argument of `plimsoll serve`: for a pvc:// source the path in the mount of its
    PersistentVolumeClaim, for file:// the path, else the source itself, which the runtime resolves.
    """
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
