"""The scheduler's counters, and the statistics made from them."""

from __future__ import annotations

from operator import attrgetter

import msgspec
from msgspec.structs import asdict

from plimsoll_runtime.engine.kv.manager import KvCacheManager
from plimsoll_runtime.engine.kv.offload.prefixes import TieredPrefixes
from plimsoll_runtime.engine.kv.state_snapshots import SnapshotSchedule
from plimsoll_runtime.engine.protocol.messages import EngineStats, SnapshotStats, TierStats


class EngineCounts(msgspec.Struct):
    """The counters of a scheduler that `EngineStats` has by the same names."""

    steps: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    forced_tokens: int = 0
    cache_query_tokens: int = 0
    cache_hit_tokens: int = 0
    preemptions: int = 0
    expired: int = 0
    broken_off: int = 0


class Counters(EngineCounts):
    """Counters of a scheduler. `computed_tokens` are all tokens that steps were planned for, of prompts and outputs."""

    arrivals: int = 0
    computed_tokens: int = 0


_NAMES = EngineCounts.__struct_fields__
_VALUES = attrgetter(*_NAMES)


def engine_stats(counters: Counters, kv: KvCacheManager, running: int, waiting: int) -> EngineStats:
    """Return the statistics of a scheduler; `running` and `waiting` are numbers of sequences."""
    pool = kv.pool
    return EngineStats(
        **dict(zip(_NAMES, _VALUES(counters), strict=True)),
        running=running,
        waiting=waiting,
        blocks_total=pool.total,
        blocks_used=pool.used,
        blocks_cached=pool.idle,
        evictions=pool.evictions,
        tiers=None if kv.tiers is None else _tier_stats(kv.tiers),
        snapshots=None if kv.snapshots is None else _snapshot_stats(kv.snapshots),
    )


def _snapshot_stats(schedule: SnapshotSchedule) -> SnapshotStats:
    rows = schedule.rows
    return SnapshotStats(rows.pool.total, rows.pool.named, rows.counts.taken, rows.counts.resumed)


def _tier_stats(tiers: TieredPrefixes) -> TierStats:
    index = tiers.index
    return TierStats(
        **asdict(index.counts),
        host_blocks=index.frames_used,
        disk_blocks=index.disk_used,
        under_way=index.in_flight,
        hit_tokens=tiers.restored_tokens,
    )
