"""Runs kubectl and helm in a network that reaches the cluster."""

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
    """Runs commands in the control plane's network, as the cluster's administrator."""

    layout: Layout
    machine: Machine

    def environment(self) -> dict[str, str]:
        """Return the environment for commands: PATH with the cluster's kubectl and helm first, KUBECONFIG, and the
        registry.
        """
        path = f"{tools(self.layout)}:{os.environ.get('PATH', os.defpath)}"
        return {"PATH": path, "KUBECONFIG": str(self.layout.kubeconfig), "REGISTRY": REGISTRY}

    def kubectl(self, *argv: str | Path, stdin: str | None = None) -> str:
        """Run kubectl and return its standard output. Raises ClusterError with its output on failure."""
        command = self.machine.enter(tools(self.layout) / "kubectl", *argv)
        return run(command, env=self.environment(), stdin=stdin)

    def can(self, *argv: str) -> bool:
        """Return whether a kubectl command succeeds."""
        return succeeds(self.machine.enter(tools(self.layout) / "kubectl", *argv), env=self.environment())
