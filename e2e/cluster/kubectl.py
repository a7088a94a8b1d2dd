"""kubectl and helm, run where the cluster can be reached."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from cluster.binaries import tools
from cluster.layout import Layout
from cluster.machine import Machine
from cluster.shell import run, succeeds
from cluster.versions import REGISTRY


@dataclass(frozen=True)
class Client:
    """Commands in the control plane's network, with the cluster's administrator as their user."""

    layout: Layout
    machine: Machine

    def environment(self) -> dict[str, str]:
        """What a command needs to find the cluster: its tools first in PATH, its kubeconfig, its registry."""
        path = f"{tools(self.layout)}:{os.environ.get('PATH', os.defpath)}"
        return {"PATH": path, "KUBECONFIG": str(self.layout.kubeconfig), "REGISTRY": REGISTRY}

    def kubectl(self, *argv: str | Path, stdin: str | None = None) -> str:
        """Standard output of kubectl. Raises ClusterError with what it said when it fails."""
        command = self.machine.enter(tools(self.layout) / "kubectl", *argv)
        return run(command, env=self.environment(), stdin=stdin)

    def can(self, *argv: str) -> bool:
        """Whether a kubectl command succeeds."""
        return succeeds(self.machine.enter(tools(self.layout) / "kubectl", *argv), env=self.environment())
