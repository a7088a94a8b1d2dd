"""What `build_engine` lets look into an engine: only an engine that is built to be profiled has one."""

from __future__ import annotations

from typing import Protocol

from plimsoll_runtime.engine.core import Runner
from plimsoll_runtime.engine.timeline import Timeline
from plimsoll_runtime.models.decoder import Decoder


class Probe(Protocol):
    """Gets each part as it is made, and gives back what is to stand in its place (the same, or a wrapper)."""

    timeline: Timeline

    def watch_decoder(self, decoder: Decoder) -> Decoder:
        """Before anything is computed."""

    def watch_runner(self, runner: Runner) -> Runner:
        """After the warm-up, before the first request."""
