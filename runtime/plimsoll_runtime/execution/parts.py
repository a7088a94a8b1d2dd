"""The objects of a step that forward passes, graphs and runners share."""

from __future__ import annotations

from dataclasses import dataclass, field

from plimsoll_runtime.engine.step_timing import Timeline
from plimsoll_runtime.execution.inputs.batch_state import NO_STATES, SlotStates
from plimsoll_runtime.execution.kv.cache import KvCache
from plimsoll_runtime.execution.kv.offload.host_memory import HostBlocks
from plimsoll_runtime.models.decoder import Decoder


@dataclass(slots=True)
class GraphCounts:
    """Forward passes that were `replayed` as CUDA graphs, those `launched` kernel by kernel, and the rows of `padding`
    in replayed ones.
    """

    replayed: int = 0
    launched: int = 0
    padding: int = 0

    def clear(self) -> None:
        """Start again from zero, after the warm-up."""
        self.replayed = self.launched = self.padding = 0


@dataclass(frozen=True, slots=True)
class StepParts:
    """A decoder with its cache and recurrent states, and the timeline of the thread that runs steps.

    `host`: the frames in host memory to which blocks of the cache are spilled, if any. `graph_counts`: those of a
    device with CUDA graphs.
    """

    decoder: Decoder
    cache: KvCache
    states: SlotStates = NO_STATES
    timeline: Timeline = field(default_factory=Timeline)
    host: HostBlocks | None = None
    graph_counts: GraphCounts = field(default_factory=GraphCounts)
