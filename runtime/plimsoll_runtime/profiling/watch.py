"""The probe that `plimsoll profile` builds an engine with."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from plimsoll_runtime.engine.core import Runner
from plimsoll_runtime.engine.protocol.plan import Launched, StepPlan
from plimsoll_runtime.engine.step_timing import Timeline
from plimsoll_runtime.models.decoder import Decoder, TorchDecoder
from plimsoll_runtime.models.ops.cost import TimesOps
from plimsoll_runtime.profiling.op_marks import CudaOpTimer, HostOpTimer, MarkedDecoder


class Watch:
    """Sees an engine's decoder on `device`, and the plan of each step. One that times no ops gets marks, if torch's."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.timeline = Timeline()
        self.plan: StepPlan | None = None
        self._decoder: Decoder | None = None

    def watch_decoder(self, decoder: Decoder) -> Decoder:
        """See Probe."""
        if isinstance(decoder, TorchDecoder):
            decoder = MarkedDecoder(decoder, CudaOpTimer() if self._device.type == "cuda" else HostOpTimer())
        self._decoder = decoder
        return decoder

    def watch_runner(self, runner: Runner) -> Runner:
        """See Probe."""
        return _WatchedRunner(runner, self)

    @property
    def decoder(self) -> Decoder:
        """The one that was built."""
        assert self._decoder is not None, "no engine was built with this watch"
        return self._decoder

    def take_op_seconds(self) -> Mapping[str, float]:
        """Of the steps since the last call, by kind of op; empty where the decoder cannot tell."""
        return self.decoder.take_seconds() if isinstance(self.decoder, TimesOps) else {}

    def show_ranges(self, shown: bool) -> None:
        """Whether torch's profiler is to see the ops of a torch decoder as ranges."""
        if isinstance(self.decoder, MarkedDecoder):
            self.decoder.show_ranges(shown)


class _WatchedRunner:
    """Keeps the last plan."""

    def __init__(self, runner: Runner, watch: Watch) -> None:
        self._runner = runner
        self._watch = watch

    def run(self, plan: StepPlan) -> Launched:
        """See Runner."""
        self._watch.plan = plan
        return self._runner.run(plan)
