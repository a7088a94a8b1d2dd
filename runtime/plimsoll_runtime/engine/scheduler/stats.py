"""The scheduler's counters, and the statistics made from them."""

from __future__ import annotations

from dataclasses import dataclass

from plimsoll_runtime.engine.kv.manager import KvCacheManager
from plimsoll_runtime.engine.kv.offload.prefixes import TieredPrefixes
from plimsoll_runtime.engine.kv.state_snapshots import SnapshotSchedule
from plimsoll_runtime.engine.protocol.messages import EngineStats, SnapshotStats, TierStats


@dataclass(slots=True)
class Counters:
    """Counters. `computed_tokens` are all tokens that steps were planned for, of prompts and outputs."""

    arrivals: int = 0
    steps: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    forced_tokens: int = 0
    cache_query_tokens: int = 0
    cache_hit_tokens: int = 0
    preemptions: int = 0
    computed_tokens: int = 0
    expired: int = 0
    broken_off: int = 0


def engine_stats(counters: Counters, kv: KvCacheManager, running: int, waiting: int) -> EngineStats:
    """Return the current gauges and counters."""
    pool = kv.pool
    return EngineStats(
        running=running,
        waiting=waiting,
        blocks_total=pool.total,
        blocks_used=pool.used,
        blocks_cached=pool.idle,
        steps=counters.steps,
        prompt_tokens=counters.prompt_tokens,
        generated_tokens=counters.generated_tokens,
        forced_tokens=counters.forced_tokens,
        cache_query_tokens=counters.cache_query_tokens,
        cache_hit_tokens=counters.cache_hit_tokens,
        preemptions=counters.preemptions,
        evictions=pool.evictions,
        expired=counters.expired,
        broken_off=counters.broken_off,
        tiers=None if kv.tiers is None else _tier_stats(kv.tiers),
        snapshots=None if kv.snapshots is None else _snapshot_stats(kv.snapshots),
    )


def _snapshot_stats(schedule: SnapshotSchedule) -> SnapshotStats:
    rows = schedule.rows
    return SnapshotStats(rows.pool.total, rows.pool.named, rows.counts.taken, rows.counts.resumed)


def _tier_stats(tiers: TieredPrefixes) -> TierStats:
    index, counts = tiers.index, tiers.index.counts
    return TierStats(
        host_blocks=index.frames_used,
        disk_blocks=index.disk_used,
        under_way=index.in_flight,
        hit_tokens=tiers.restored_tokens,
        spilled=counts.spilled,
        dropped=counts.dropped,
        loaded=counts.loaded,
        failed=counts.failed,
        passed=counts.passed,
    )
