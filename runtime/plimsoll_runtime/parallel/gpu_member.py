"""The steps of a rank other than 0 on a GPU: those of `GpuRunner` without sampling."""

from __future__ import annotations

from plimsoll_runtime.engine.protocol.plan import SequenceOutput, StepPlan, StepResult
from plimsoll_runtime.execution.forward import GraphForwardPass
from plimsoll_runtime.execution.inputs.device_state import DeviceState
from plimsoll_runtime.execution.inputs.step_rows import StepRows
from plimsoll_runtime.execution.runners.base import StepRunner
from plimsoll_runtime.execution.runners.gpu import Event
from plimsoll_runtime.parallel.member import NoParams


class GpuMemberRunner(StepRunner):
    """Computes the forward passes of a rank other than 0, as graphs if there are some. Its outputs have no tokens.

    A step ends when the device has computed it, so that a rank whose device hangs or fails is the one that is named.
    """

    def __init__(self, forward_pass: GraphForwardPass, state: DeviceState, event: Event) -> None:
        """`event`: set after the work of a step."""
        super().__init__(forward_pass, state, NoParams())
        self._forward_pass: GraphForwardPass = forward_pass
        self._state = state
        self._event = event

    def _compute(self, plan: StepPlan) -> StepResult:
        self._state.upload_buffer.start_step()
        rows = StepRows.of(plan, self._state, self._parts.cache.block_size)
        self._forward(plan, self._forward_pass.run_rows, rows)
        self._event.record()
        self._event.synchronize()
        return StepResult([SequenceOutput()] * len(plan.sequences), self._forward_pass.fallbacks)
