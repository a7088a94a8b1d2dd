"""Which model lies on which host of a pool, and how deep it sleeps there: one pure planner, and its records.

Nothing here reads a clock, a file or the cluster. `planner.plan` takes a `PoolState` and returns a `Plan`.
"""
