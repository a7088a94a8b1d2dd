"""The work of an engine's steps and the peaks of its device, summed over the ranks of a group."""

from __future__ import annotations

import msgspec

from plimsoll_runtime.driver.build.loader import LoadedModel
from plimsoll_runtime.driver.process.handshake import Grant
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.work.model import WorkModel, merged
from plimsoll_runtime.execution.device.peaks import Peaks
from plimsoll_runtime.execution.device.stored_peaks import measured_peaks, stored_peaks
from plimsoll_runtime.execution.memory.kv_budget import free_memory
from plimsoll_runtime.models.program import Program
from plimsoll_runtime.models.work import work_model
from plimsoll_runtime.parallel.rank import Rank

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(WorkModel).decode


def work_of(loaded: LoadedModel, rank: Rank | None) -> WorkModel | None:
    """Return the work of a step on all ranks; None for Transformers code, whose ops have no costs."""
    model = loaded.model
    if not isinstance(model.outline, Program):
        return None
    own = work_model(model.outline, model.dtype.itemsize)
    return own if rank is None else merged([_decode(each) for each in rank.group.gathered(_encode(own))])


def peaks_of(
    config: EngineConfig, loaded: LoadedModel, grant: Grant | None, rank: Rank | None, *, probed: bool
) -> Peaks | None:
    """Return the peaks of the device, summed over the ranks of a group; None if they are not known.

    They are measured if no start on this machine has done so, before the KV cache takes memory, and by all ranks of a
    group at the same time. A wake does not measure, because a request waits for it. A profile measures by itself, and
    batches export no metrics.
    """
    if config.offline or probed:
        return None
    device, dtype = loaded.model.device, loaded.model.dtype
    neighbours = 1 if rank is None else rank.neighbours
    found = stored_peaks(device, dtype, neighbours)
    if not _of_all(found is not None, rank) and _of_all(not loaded.woken, rank):
        free = free_memory(device) // neighbours if grant is None else grant.kv + grant.workspace
        found = measured_peaks(device, dtype, free, neighbours)
    if not _of_all(found is not None, rank):
        return None
    assert found is not None
    if rank is None:
        return found
    return Peaks(rank.total(int(found.bandwidth)), rank.total(int(found.rate)))


def _of_all(true: bool, rank: Rank | None) -> bool:
    """Return whether it is true on every rank."""
    return true if rank is None else rank.total(int(true)) == rank.layout.size
