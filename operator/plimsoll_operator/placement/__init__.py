"""The planner: chooses the host and sleep level of each model of a pool. Its input is records, its output a plan with
reasons.

No module of this package reads a clock, a file or the cluster. `planner.plan` takes a `PoolState` and returns a `Plan`.
"""
