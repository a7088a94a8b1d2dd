"""The objects of a step that forward passes, graphs and runners share."""

from __future__ import annotations

from dataclasses import dataclass, field

from plimsoll_runtime.engine.step_timing import Timeline
from plimsoll_runtime.execution.inputs.batch_state import NO_STATES, SlotStates
from plimsoll_runtime.execution.kv.cache import KvCache
from plimsoll_runtime.execution.kv.offload.host_memory import HostBlocks
from plimsoll_runtime.models.decoder import Decoder


@dataclass(frozen=True, slots=True)
class StepParts:
    """A decoder with its cache and recurrent states, and the timeline of the thread that runs steps.

    `host`: the frames in host memory to which blocks of the cache are spilled, if any.
    """

    decoder: Decoder
    cache: KvCache
    states: SlotStates = NO_STATES
    timeline: Timeline = field(default_factory=Timeline)
    host: HostBlocks | None = None
