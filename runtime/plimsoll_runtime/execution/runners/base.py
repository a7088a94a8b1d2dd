"""The base of all runners: the order of a step's work, block copies, and errors of device memory."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import msgspec
import torch
from torch import Tensor

from plimsoll_kernels.cpu.threads import ThreadShare
from plimsoll_runtime.engine.core import Runner
from plimsoll_runtime.engine.protocol.messages import LogprobEntry
from plimsoll_runtime.engine.protocol.plan import (
    Launched,
    ScheduledSequence,
    SequenceOutput,
    SlotInit,
    StepPlan,
    StepResult,
)
from plimsoll_runtime.engine.scheduler.token_budget import StepMemoryError
from plimsoll_runtime.engine.step_timing import StepPhase
from plimsoll_runtime.execution.device.faults import is_device_memory
from plimsoll_runtime.execution.forward import ForwardPass
from plimsoll_runtime.execution.inputs.batch_state import SlotTables
from plimsoll_runtime.execution.kv.cache import KvCache
from plimsoll_runtime.execution.kv.offload.host_memory import HostBlocks

logger = logging.getLogger(__name__)

_Inputs = TypeVar("_Inputs")


class SlotParams(Protocol):
    """Parameters of the sequences in the slots, for example for sampling."""

    def fill(self, init: SlotInit) -> None:
        """Store the parameters of a sequence that takes a slot."""

    def free(self, slot: int) -> None:
        """Forget the parameters of a slot, whose sequence has left it."""

    def break_off(self) -> None:
        """Discard the running step, which ran out of memory. Its slots are freed before the next one."""


class StepRunner(ABC):
    """Runs one decoder on one device over one cache. Subclasses compute the sequences of a plan."""

    def __init__(self, forward_pass: ForwardPass, state: SlotTables, params: SlotParams) -> None:
        self._forward_pass = forward_pass
        self._parts = forward_pass.parts
        self._tables = state
        self._params = params
        self._shortages = 0

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> Launched:
        """Compute one step; the outputs are in the order of the plan's sequences.

        Raises StepMemoryError if the device has too little memory for the plan. Memory that torch keeps for later is
        then returned to the device.
        """
        self._tables.begin(plan)
        if plan.freed_slots:
            for slot in plan.freed_slots:
                self._params.free(slot)
            self._parts.states.free(plan.freed_slots)
        for init in plan.new_slots:
            self._params.fill(init)
        copy_blocks(plan, self._parts.cache, self._parts.host)
        if not plan.sequences:
            return StepResult((), self._forward_pass.fallbacks)
        try:
            launched = self._compute(plan)
            self._parts.timeline.lap(StepPhase.SAMPLE)
            return launched
        except Exception as error:
            if not is_device_memory(error):
                raise
            message = str(error)
        # The error is freed here, and with it the frames that held the step's memory.
        self._params.break_off()
        raise self._memory_error(plan, message)

    @abstractmethod
    def _compute(self, plan: StepPlan) -> Launched:
        """Compute the sequences of a plan, at least one. Its copies are done."""

    def _forward(self, plan: StepPlan, run: Callable[[_Inputs], Tensor], inputs: _Inputs) -> Tensor:
        """Run a forward pass between the copies of recurrent states that a plan lists."""
        if plan.resumes:
            self._parts.states.resume(plan.resumes)
        hidden = run(inputs)
        if plan.snapshots:
            self._parts.states.take_snapshots(plan.snapshots)
        self._parts.timeline.lap(StepPhase.FORWARD)
        return hidden

    def _memory_error(self, plan: StepPlan, message: str) -> StepMemoryError:
        """Return the error to raise for a plan; `message`: torch's text.

        Memory that torch's allocator keeps for later is returned to the device, for other processes and libraries.
        """
        if torch.accelerator.is_available():
            torch.accelerator.empty_cache()
        self._shortages += 1
        what = message.partition("\n")[0]
        # It may happen every few steps, so only the first, second, fourth and so on are logged.
        if not self._shortages & (self._shortages - 1):
            logger.warning(
                "a step of %d tokens of %d sequences ran out of device memory (%s); planning a smaller one; "
                "%d times so far",
                plan.num_tokens,
                len(plan.sequences),
                what,
                self._shortages,
            )
        return StepMemoryError(what)


class OwnThreads:
    """A runner whose steps always use its own engine's threads, even if another engine was loaded later."""

    def __init__(self, runner: Runner, threads: ThreadShare) -> None:
        self._runner = runner
        self._threads = threads

    def run(self, plan: StepPlan) -> Launched:
        """Set the number of threads, then compute the step."""
        self._threads.take()
        return self._runner.run(plan)


def copy_blocks(plan: StepPlan, cache: KvCache, host: HostBlocks | None) -> None:
    """Copy the blocks that a plan lists, in the order of `StepPlan`.

    A GPU copies asynchronously: `HostBlocks.copies` says when copies to and from host memory are over.
    """
    if host is not None:
        host.begin(plan)
    if plan.num_blocks is not None:
        cache.resize(plan.num_blocks, plan.moves)
    if plan.block_copies:
        cache.copy_blocks(plan.block_copies)


_NOTHING = SequenceOutput()


def merged_outputs(
    sequences: Sequence[ScheduledSequence], sampled: dict[int, SequenceOutput], prompts: dict[int, list[LogprobEntry]]
) -> list[SequenceOutput]:
    """Return the output of each sequence: that of its slot in `sampled` (an empty one if it has none), with the slot's
    prompt log probabilities from `prompts`.
    """
    outputs = [sampled.get(s.slot, _NOTHING) for s in sequences]
    if not prompts:
        return outputs
    return [
        msgspec.structs.replace(output, prompt_logprobs=prompts[s.slot]) if s.slot in prompts else output
        for s, output in zip(sequences, outputs, strict=True)
    ]
