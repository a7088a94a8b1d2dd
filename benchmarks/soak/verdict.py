"""Rules that must hold after a soak, as pure functions over the measurements that return complaints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from soak.growth import FEWEST, Reading, growth
from soak.server import Footprint

IDLE = (
    "plimsoll_kv_blocks_used",
    "plimsoll_sequences_running",
    "plimsoll_sequences_waiting",
    "plimsoll_requests_in_flight",
    "plimsoll_answers_waiting",
)
"""Gauges that are zero on an idle server."""
REACHED = (
    "plimsoll_preemptions_total",
    "plimsoll_evictions_total",
    "plimsoll_prefix_hit_tokens_total",
    "plimsoll_expired_total",
)
"""Counters of situations that the load must provoke; if one stays at zero, the soak has tested less than it claims."""


def of_idleness(metrics: Mapping[str, float]) -> list[str]:
    """Return complaints about resources that an idle server still holds."""
    return [f"{name} is {metrics[name]:g} on an idle server" for name in IDLE if metrics[name]]


def of_reach(metrics: Mapping[str, float]) -> list[str]:
    """Return complaints about situations that the load did not provoke."""
    return [f"{name} is 0: the load was too small to show anything about it" for name in REACHED if not metrics[name]]


def of_checks(metrics: Mapping[str, float], every: int) -> list[str]:
    """Return a complaint if the engine ran fewer than `every` steps, and so never checked its records. (A failed check
    ends the engine.)
    """
    steps = metrics["plimsoll_engine_steps_total"]
    return [f"{steps:g} steps are too few for a check each {every}"] if steps < every else []


def of_memory(readings: Mapping[str, Sequence[Reading]]) -> list[str]:
    """Return complaints about growing processes, and about too few readings to judge."""
    found = []
    for name, series in readings.items():
        if len(series) < FEWEST:
            found.append(f"{name}: {len(series)} readings are too few to judge its memory; run longer")
        elif complaint := growth(series).complaint:
            found.append(f"{name}: {complaint}")
    return found


def of_handles(before: Mapping[str, Footprint], after: Mapping[str, Footprint], spare_threads: int) -> list[str]:
    """Return complaints about new descriptors and threads of an idle process. `spare_threads` new threads are allowed,
    because a pool of threads grows up to its size on first use.
    """
    found = []
    for name, was in before.items():
        now = after[name]
        if now.descriptors > was.descriptors:
            found.append(f"{name}: {now.descriptors} open descriptors, {was.descriptors} before the load")
        if now.threads > was.threads + spare_threads:
            found.append(f"{name}: {now.threads} threads, {was.threads} before the load")
    return found


def of_end(exit_code: int, log: str) -> list[str]:
    """Return complaints about how the server ended, and about errors in its log."""
    found = [] if exit_code == 0 else [f"the server ended with {exit_code}"]
    bad = [line for line in log.splitlines() if " ERROR " in line or line.startswith("Traceback")]
    return [*found, f"the log has {len(bad)} errors, first: {bad[0][:300]}"] if bad else found
