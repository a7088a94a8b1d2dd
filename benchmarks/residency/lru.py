"""Plain LRU for comparison: evicts the model that was used the longest ago as soon as another model has a request."""

from __future__ import annotations

from plimsoll_runtime.residency.ledger import Grant
from plimsoll_runtime.residency.planner.actions import Action, DropImage, Plan, Sleep, Wait, Wake
from plimsoll_runtime.residency.planner.eviction import may_drop
from plimsoll_runtime.residency.planner.view import HostView, ModelView
from plimsoll_runtime.residency.settings import Settings
from plimsoll_runtime.residency.states import ASLEEP, Level, State


def plan_lru(view: HostView, settings: Settings) -> Plan:
    """Return a plan that wakes models in order of arrival, and evicts the least recently used ones for that; in-flight
    and pinned models are not evicted.
    """
    actions: list[Action] = []
    free, later = view.free, view.free + sum(model.coming for model in view.models)
    idle = sorted(
        (m for m in view.models if m.state is State.RESIDENT and not m.active and not m.pinned),
        key=lambda m: (m.last_used, m.name),
    )
    wanted = [m for m in view.models if m.asked is not None and m.state in ASLEEP]
    for model in sorted(wanted, key=lambda m: (m.asked, m.name)):
        sizes = model.sizes
        while later < sizes.least and idle:
            victim = idle.pop(0)
            assert victim.grant is not None
            actions.append(Sleep(victim.name, Level.IN_HOST, victim.value, "least recently used"))
            later += victim.grant.total
        if sizes.least <= min(free, later):
            grant = Grant(sizes.weights, sizes.workspace, sizes.kv_minimum)
            actions.append(Wake(model.name, grant, "asked for"))
            free -= grant.total
        else:
            actions.append(Wait(model.name, "no room yet"))
        later -= sizes.least
    return Plan(tuple(actions))


def lru_images(view: HostView, comer: ModelView, size: int, free: int) -> tuple[DropImage, ...] | None:
    """Return the least recently used images to drop so that a new image of `size` bytes fits, if `free` bytes are free
    now; None if dropping all that may be dropped is not enough.
    """
    drops: list[DropImage] = []
    for sleeper in sorted(filter(may_drop, view.models), key=lambda m: (m.last_used, m.name)):
        if free >= size:
            break
        drops.append(DropImage(sleeper.name, sleeper.image_value, "least recently used"))
        free += sleeper.image
    return tuple(drops) if free >= size else None
