"""The operator's own metrics, for Prometheus."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

PASSES = Counter("plimsoll_operator_reconciles_total", "Passes over an object that succeeded")
FAILURES = Counter("plimsoll_operator_reconcile_failures_total", "Passes that the API server made fail")
SECONDS = Histogram("plimsoll_operator_reconcile_seconds", "Time of a successful pass")
QUEUE = Gauge("plimsoll_operator_queue", "Objects that wait for a pass")
LEADER = Gauge("plimsoll_operator_leader", "1 while this operator holds the Lease")
LEADERLESS = Gauge("plimsoll_operator_leaderless_seconds", "Seconds since an operator was last seen to hold the Lease")
UNFOLLOWED = Gauge("plimsoll_operator_unfollowed", "Lists and watches that failed when last tried")
