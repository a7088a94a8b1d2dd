"""What is done where a step finds no memory on the device: give back what can be, and say so."""

from __future__ import annotations

import logging

import torch

from plimsoll_runtime.engine.plan import StepPlan
from plimsoll_runtime.engine.shortage import StepMemoryError

logger = logging.getLogger(__name__)


class Shortages:
    """Those of a runner. The log has the first, the second, the fourth and so on: there may be one every few steps."""

    def __init__(self) -> None:
        self.count = 0

    def error(self, plan: StepPlan, told: str) -> StepMemoryError:
        """The error to raise, once nothing holds any longer what the step had allocated; `told`: torch's text.

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
