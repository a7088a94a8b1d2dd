"""The planner: what to do next in a pool, and why.

It is level-triggered: over the state that a plan leads to, the next plan is empty. What counts, in this order: that it
is feasible, that little is loaded, that what is worth most stays awake, spread and affinity, and even pressure. What is
unneeded goes first, then models that should be awake come, in the order of their claims, then every model gets the
places that it lacks; what sleeps on a host that holds far more than another goes there.
"""

from __future__ import annotations

from plimsoll_operator.placement.host_selection import HostSelection
from plimsoll_operator.placement.journal import Journal
from plimsoll_operator.placement.phases.balance import balance
from plimsoll_operator.placement.phases.coverage import cover
from plimsoll_operator.placement.phases.feasibility import refuse_infeasible
from plimsoll_operator.placement.phases.removal import remove
from plimsoll_operator.placement.phases.wake import wake
from plimsoll_operator.placement.plan_builder import PlanBuilder
from plimsoll_operator.placement.pool_index import PoolIndex
from plimsoll_operator.placement.records.plan import Plan
from plimsoll_operator.placement.records.pool import PoolState

ROUNDS = 8
"""What a round leaves may let the next one do more: so often at the most, which is never reached in practice."""


def plan(state: PoolState, journal: Journal | None = None) -> Plan:
    """The actions that bring a pool closer to what is wanted of it; none when it is settled or must wait."""
    return build_plan(state, journal or Journal()).plan()


def build_plan(state: PoolState, journal: Journal) -> PlanBuilder:
    """The same with its ledgers, as all actions leave them."""
    made = PlanBuilder(PoolIndex(state))
    selection = HostSelection(made.index, made.evictions)
    refuse_infeasible(made)
    for _ in range(ROUNDS):
        before = len(made.actions)
        made.begin()
        remove(made)
        wake(made, selection, journal)
        cover(made, selection, journal)
        balance(made)
        if len(made.actions) == before:
            break
    return made
