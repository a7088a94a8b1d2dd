"""The planner: computes the next actions in a pool, with reasons.

It is level-triggered: for the state that a plan leads to, the next plan is empty. Priorities, in this order: the plan
is feasible, little is loaded, the models of the highest retention value stay awake, spread and affinity, even load of
the hosts. A round removes what is not wanted, wakes models in the order of `Known.order`, gives each model its missing
copies, and moves OnDisk models from full hosts to empty ones.
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
"""The most rounds: one round may enable more actions in the next. Plans in practice need fewer."""


def plan(state: PoolState, journal: Journal | None = None) -> Plan:
    """Return the next actions toward a pool's wanted state: none if it is reached, or if they have to wait."""
    return build_plan(state, journal or Journal()).plan()


def build_plan(state: PoolState, journal: Journal) -> PlanBuilder:
    """Like `plan`, but return the builder, whose ledgers show the state after all actions."""
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
