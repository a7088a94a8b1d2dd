"""The work of a decoder's ops in one step, for traces."""

from __future__ import annotations

from collections.abc import Mapping

from plimsoll_runtime.engine.protocol.messages import OpWork
from plimsoll_runtime.engine.protocol.plan import StepPlan
from plimsoll_runtime.models.decoder import Decoder
from plimsoll_runtime.models.ops.cost import OpCost, OpKind, TimesOps
from plimsoll_runtime.models.program import Program


class DecoderOps:
    """An `OpMeter` of a decoder. Seconds are those that the decoder measures itself (the CPU executor does); a decoder
    that runs op by op or in graphs would have to run differently to be measured, which `plimsoll profile` does.
    """

    def __init__(self, decoder: Decoder) -> None:
        self._program = decoder.outline if isinstance(decoder.outline, Program) else None
        self._element_bytes = decoder.dtype.itemsize
        self._timer = decoder if isinstance(decoder, TimesOps) else None

    def begin(self) -> None:
        """Forget the seconds of steps before."""
        if self._timer is not None:
            self._timer.take_seconds()

    def work(self, plan: StepPlan, *, measured: bool) -> list[OpWork]:
        """Return the work of a step's ops by kind; empty for code of Transformers, whose ops are not known."""
        if self._program is None:
            return []
        seconds: Mapping[str, float] = self._timer.take_seconds() if measured and self._timer is not None else {}
        costs = self._program.step_cost(plan, self._element_bytes)
        return [
            OpWork(kind.value, seconds.get(kind), cost.flops, cost.bytes)
            for kind in OpKind
            if (cost := costs.get(kind, OpCost())).flops or cost.bytes or seconds.get(kind)
        ]
