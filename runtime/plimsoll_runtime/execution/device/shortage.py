"""What is done where a step finds no memory on the device: give back what can be, and say so."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

import torch

from plimsoll_runtime.engine.protocol.plan import StepPlan
from plimsoll_runtime.engine.scheduler.token_budget import StepMemoryError
from plimsoll_runtime.execution.device.fault import is_device_memory

logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")


class Shortages:
    """Those of a runner. The log has the first, the second, the fourth and so on: there may be one every few steps."""

    def __init__(self) -> None:
        self.count = 0

    def watch(
        self,
        plan: StepPlan,
        compute: Callable[[StepPlan], _Result],
        break_off: Callable[[], None] = lambda: None,
    ) -> _Result:
        """What computing a plan gives.

        Raises StepMemoryError where the device has no memory for it, after `break_off`; any other error as it is.
        """
        try:
            return compute(plan)
        except Exception as error:
            if not is_device_memory(error):
                raise
            told = str(error)
        # The error is gone, and with it the frames that held what the step had allocated.
        break_off()
        raise self._error(plan, told)

    def _error(self, plan: StepPlan, told: str) -> StepMemoryError:
        """The error to raise; `told`: torch's text.

        What torch's allocator keeps for later goes back to the device, where other processes and libraries find it too.
        """
        if torch.accelerator.is_available():
            torch.accelerator.empty_cache()
        self.count += 1
        what = told.partition("\n")[0]
        if not self.count & (self.count - 1):
            logger.warning(
                "a step of %d tokens of %d sequences found no memory on the device (%s), and is planned anew, smaller; "
                "%d such so far",
                plan.num_tokens,
                len(plan.sequences),
                what,
                self.count,
            )
        return StepMemoryError(what)
