"""The planner: on which host of a pool each model is, and at which sleep level. Records in, a plan with reasons out.

Nothing here reads a clock, a file or the cluster. `planner.plan` takes a `PoolState` and returns a `Plan`.
"""
