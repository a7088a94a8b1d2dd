"""The planner: chooses the host and sleep level of each model of a pool.

No module of this package reads a clock, a file or the cluster. `planner.plan` takes a `PoolState` and returns a `Plan`:
actions with reasons.
"""
