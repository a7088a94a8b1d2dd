"""The operator's own metrics, for Prometheus."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

PASSES = Counter(
    "plimsoll_operator_reconciles_total",
    "Reconciles that succeeded, by the kind of object; Placement: plans of pools",
    ("kind",),
)
FAILURES = Counter(
    "plimsoll_operator_reconcile_failures_total", "Reconciles that failed, by the kind of object", ("kind",)
)
SECONDS = Histogram("plimsoll_operator_reconcile_seconds", "Seconds that successful reconciles took")
QUEUE = Gauge("plimsoll_operator_queue", "Objects that wait for a reconcile")
LEADER = Gauge("plimsoll_operator_leader", "1 while this operator holds the Lease")
LEADERLESS = Gauge("plimsoll_operator_leaderless_seconds", "Seconds since an operator was last seen to hold the Lease")
UNFOLLOWED = Gauge("plimsoll_operator_unfollowed", "Lists and watches that failed when last tried")
UNRECORDED = Gauge("plimsoll_operator_unrecorded_names", "Served names that do not fit into the record of names")
REPORT_AGE = Histogram(
    "plimsoll_operator_report_age_seconds",
    "Age of the oldest host report of a pool's plan, in seconds",
    buckets=(0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 30, 60, 300),
)
PLANNING = Histogram(
    "plimsoll_operator_plan_seconds",
    "Seconds that planning for a pool took",
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1),
)
WAITING_GROUPS = Gauge(
    "plimsoll_operator_waiting_groups", "Models whose next group of pods waits for its turn to be placed"
)
GIVEN_BACK = Counter(
    "plimsoll_operator_groups_given_back_total", "Groups whose pods were deleted because not all of them got a node"
)
ACTIONS = Counter(
    "plimsoll_operator_placement_actions_total",
    "Placement decisions that a host accepted, by action (place, unload, sleep, wake, move) and the kind of its reason",
    ("action", "reason"),
)
ACTION_FAILURES = Counter(
    "plimsoll_operator_placement_failures_total",
    "Placement decisions that a host did not carry out, by action; outcome: refused by the host, or failed",
    ("action", "outcome"),
)
EVICTIONS = Counter(
    "plimsoll_operator_evictions_total",
    "Models put to sleep or unloaded for another one or for memory pressure, by the evicted model",
    ("namespace", "model"),
)
REFUSALS = Gauge(
    "plimsoll_operator_refused_placements",
    "Models of a pool that its last plan could not place or wake as wanted, by the kind of the reason",
    ("namespace", "pool", "reason"),
)
