"""Decides which models wake and which are evicted, and why: a pure function of the host's view.

Wanted models are handled in the order in which they were first requested. A model that fits into free memory wakes.
Otherwise KV caches release unused memory, and idle models that are worth less are evicted (churn guard: the victims'
expected seconds of loading must not exceed those of the new model). Otherwise the model waits for a service slice to
end. It wakes when it has waited as long as the swap would cost in loading (or `patience`, if less), and its victims
have served for a slice (twice their reload time, within bounds); they then finish their requests and sleep. The first
waiting model keeps the memory that it will need; others may pass it only if they fit into the rest. So every model gets
its turn, and none is swapped more often than once in a slice.
"""

from __future__ import annotations

import math

from plimsoll_runtime.residency.ledger import Grant
from plimsoll_runtime.residency.planner import actions
from plimsoll_runtime.residency.planner.actions import (
    Action,
    DropImage,
    Plan,
    Refuse,
    Resize,
    Resume,
    Sleep,
    Wait,
    Wake,
)
from plimsoll_runtime.residency.planner.eviction import (
    EvictionSet,
    by_image_value,
    by_turn,
    by_value,
    choose,
    is_idle,
    may_drop,
    may_leave,
    turn_of,
)
from plimsoll_runtime.residency.planner.view import HostView, ModelView, Pressure
from plimsoll_runtime.residency.settings import Settings
from plimsoll_runtime.residency.sizes import size_text
from plimsoll_runtime.residency.states import ASLEEP, Level, State

FULL_AT = 0.75
"""The share of a KV cache in use from which on it grows, if there is memory."""
LEAST_GROWTH = 8
"""A KV cache grows by at least 1/LEAST_GROWTH, or not at all."""
LEAD = 5.0
"""Seconds before a predicted request at which its model should be awake."""
LATE = 30.0
"""Seconds after which a predicted request is not expected any longer."""


def plan(view: HostView, settings: Settings) -> Plan:
    """Return the actions to do now. The same view gives the same plan."""
    draft = _Draft(view, settings)
    for model in sorted(filter(_is_wanted, view.models), key=lambda m: (m.asked, m.name)):
        draft.admit(model)
    draft.relieve()
    if not draft.crowded:
        draft.resume()
        draft.fill()
        draft.preload()
        draft.grow()
    return Plan(tuple(draft.actions), draft.look_at)


def _guard(wanted: ModelView, room: EvictionSet) -> bool:
    """Return whether victims may be evicted right away: none has a higher priority, and those of the same priority are
    together worth no more than `wanted`.
    """
    if any(victim.priority > wanted.priority for victim in room.victims):
        return False
    return sum(victim.worth for victim in room.victims if victim.priority == wanted.priority) <= wanted.worth


def _is_wanted(model: ModelView) -> bool:
    return model.asked is not None and model.state in ASLEEP


def _is_young(model: ModelView, settings: Settings, now: float) -> bool:
    """Return whether only the minimum residency protects a model from eviction."""
    return may_leave(model) and now < model.since + settings.minimum_residency


class _Draft:
    """A plan under construction.

    `free` can be granted now. `later` remains after all admitted models are awake and all leaving ones have gone. A
    model that wakes now must fit into both.
    """

    def __init__(self, view: HostView, settings: Settings) -> None:
        self._view = view
        self._settings = settings
        self._free = view.free
        self._later = view.free + sum(model.coming for model in view.models)
        self._models = {model.name: model for model in view.models}
        self.actions: list[Action] = []
        self.look_at = math.inf
        self.crowded = False

    def admit(self, wanted: ModelView) -> None:
        """Add the actions that wake a model or evict others for it, or a Wait or Refuse with the reason why it cannot
        wake.
        """
        if self._cannot(wanted):
            return
        need = wanted.sizes.least
        if need <= min(self._free, self._later):
            self._wake(wanted, actions.woken(wanted, self._view.now))
            return
        self.crowded = True
        if need <= self._later:
            self._later -= need
            self.actions.append(Wait(wanted.name, "memory is being freed for it"))
        else:
            self._make_room(wanted, need - self._later)

    def relieve(self) -> None:
        """If memory is short, release some before the kernel kills a process.

        Each plan does one thing at most: drop an image, shrink a KV cache, or evict an idle model.
        """
        view = self._view
        over = view.free < 0
        if not over and not (view.relieve and view.pressure is not Pressure.NONE):
            return
        why = (
            f"the runtime has grown {size_text(-view.free)} over the line"
            if over
            else (f"memory pressure is {view.pressure.word}")
        )
        sleepers = sorted(filter(may_drop, view.models), key=by_image_value)
        if sleepers and view.shared and not over:
            first = sleepers[0]
            self.actions.append(DropImage(first.name, first.image_value, f"dropped {first.name}'s image: {why}"))
            return
        spare = max(self._models.values(), key=lambda m: (m.spare_kv, m.name), default=None)
        if spare is not None and spare.spare_kv:
            assert spare.grant is not None
            self._resize(spare, spare.grant.kv - spare.spare_kv, f"{spare.name}'s KV cache shrinks: {why}")
            return
        idle = sorted((m for m in self._models.values() if is_idle(m, self._settings, view.now)), key=by_value)
        if idle and not any(model.coming for model in view.models):
            # If memory is shared, only a dropped image frees memory.
            text = f"evicted {idle[0].name}: {why}, {actions.idle(idle[0], view.now)}"
            self._sleep(idle[0], text, keep=over or not view.shared)

    def resume(self) -> None:
        """Resume models that drain although nothing needs their memory any longer."""
        if self._view.pressure is not Pressure.NONE or self._view.free < 0:
            return
        for model in self._view.models:
            if model.state is State.DRAINING and model.yielding:
                self.actions.append(Resume(model.name, f"{model.name} continues: no other model needs its memory"))
                self._later -= model.coming

    def fill(self) -> None:
        """Wake models whose image an operation wants in host memory (a wake fills it), into free memory only."""
        for model in self._view.models:
            if model.fill and model.asked is None and model.state is State.ON_DISK and not self._cannot(model):
                self._wake_if_free(model, "its image is wanted in host memory")

    def preload(self) -> None:
        """Wake models with a predicted request, into free memory only."""
        if self._view.pressure is not Pressure.NONE:
            return
        for model in sorted((m for m in self._view.models if m.due is not None), key=lambda m: (m.due, m.name)):
            if model.state not in ASLEEP or model.asked is not None or model.due is None or model.fill:
                continue
            begin = model.due - model.reload_seconds - LEAD
            if begin > self._view.now:
                self._look_again(begin)
            elif self._view.now <= model.due + LATE and model.retry_at <= self._view.now:
                away = actions.duration(model.due - self._view.now)
                self._wake_if_free(model, f"woken into free memory: a request is predicted in {away}")

    def grow(self) -> None:
        """Give nearly full KV caches more of the free memory."""
        if self._view.pressure is not Pressure.NONE:
            return
        for model in sorted(self._models.values(), key=lambda m: (-m.kv_used, m.name)):
            if model.grant is None or model.state is not State.RESIDENT or model.kv_wanted is not None:
                continue
            kv = model.grant.kv
            more = min(model.sizes.kv_useful - kv, kv, max(0, min(self._free, self._later)) // 2)
            if model.kv_used >= FULL_AT * kv and more * LEAST_GROWTH >= kv > 0 and more > 0:
                self._free -= more
                self._later -= more
                self._resize(
                    model, kv + more, f"{model.name}'s KV cache grows: {model.kv_used / kv:.0%} of it is in use"
                )

    def _cannot(self, wanted: ModelView) -> bool:
        """Return whether the model cannot wake now, whatever is evicted, and record why."""
        view = self._view
        if wanted.retry_at > view.now:
            left = actions.duration(wanted.retry_at - view.now)
            why = f"it could not be loaded; the next attempt is in {left}"
            self.actions.append(Wait(wanted.name, why, wanted.retry_at))
            self._look_again(wanted.retry_at)
            return True
        pinned = sum(m.sizes.least for m in view.models if m.pinned and m.grant is not None and m.name != wanted.name)
        if wanted.sizes.least > view.line - view.reserved - pinned:
            why = actions.never_fits(wanted, view.line, view.reserved, pinned)
            self.actions.append(Refuse(wanted.name, "does_not_fit", why))
            return True
        if view.pressure is Pressure.FULL:
            why = f"{wanted.name} is not loaded while memory pressure is full; try again, or give the pod more memory"
            self.actions.append(Refuse(wanted.name, "memory_pressure", why))
            return True
        return False

    def _make_room(self, wanted: ModelView, shortfall: int) -> None:
        now, settings = self._view.now, self._settings
        models = tuple(self._models.values())
        idle = sorted((m for m in models if is_idle(m, settings, now)), key=by_value)
        room = choose(models, idle, shortfall)
        if room is not None and _guard(wanted, room):
            self._evict(wanted, room, [actions.evicted(v, wanted, now, self._view.clock) for v in room.victims])
            return
        ripening = sorted(filter(may_leave, models), key=by_turn(settings, now))
        room = choose(models, ripening, shortfall)
        if room is None:
            self.actions.append(Wait(wanted.name, "other models are waking, draining or in use"))
            self._later = 0
            return
        asked = now if wanted.asked is None else wanted.asked
        # As in ski rental: if the wait ends when it has cost as much as the swap does, both together cost at most twice
        # the optimum.
        cost = wanted.reload_seconds + sum(victim.reload_seconds for victim in room.victims)
        patience = min(settings.patience, cost)
        turn = max([asked + patience, *(turn_of(victim, settings) for victim in room.victims)])
        self._look_again(
            min((m.since + settings.minimum_residency for m in models if _is_young(m, settings, now)), default=turn)
        )
        if turn <= now:
            self._evict(wanted, room, [actions.turned(victim, wanted, now) for victim in room.victims])
            return
        names = ", ".join(str(victim.name) for victim in room.victims)
        why = f"it can be woken in {actions.duration(turn - now)}, in place of {names}"
        self.actions.append(Wait(wanted.name, why, turn))
        self._look_again(turn)
        self._later += room.gained - wanted.sizes.least
        for model in (*room.victims, *(model for model, _ in room.shrinks)):
            del self._models[model.name]

    def _evict(self, wanted: ModelView, room: EvictionSet, whys: list[str]) -> None:
        """Add the actions that evict the chosen models, and reserve their memory for the wanted one."""
        for victim, why in zip(room.victims, whys, strict=True):
            self._sleep(victim, why)
        for model, kv in room.shrinks:
            self._resize(model, kv, f"{model.name}'s KV cache shrinks for {wanted.name}")
        self._later += room.gained - wanted.sizes.least
        self.actions.append(Wait(wanted.name, "memory is being freed for it"))

    def _sleep(self, victim: ModelView, why: str, *, keep: bool = True) -> None:
        self.actions.append(Sleep(victim.name, Level.IN_HOST if keep else Level.ON_DISK, victim.value, why))
        del self._models[victim.name]

    def _resize(self, model: ModelView, kv: int, why: str) -> None:
        self.actions.append(Resize(model.name, kv, why))
        # One change of a model in a plan is enough.
        del self._models[model.name]

    def _wake_if_free(self, model: ModelView, why: str) -> None:
        if model.sizes.least <= min(self._free, self._later):
            self._wake(model, why)

    def _wake(self, model: ModelView, why: str) -> None:
        """Wake a model, with half of the remaining memory for its KV cache, as far as that is useful."""
        sizes = model.sizes
        rest = min(self._free, self._later) - sizes.least
        grant = Grant(sizes.weights, sizes.workspace, min(sizes.kv_useful, sizes.kv_minimum + rest // 2))
        self._free -= grant.total
        self._later -= grant.total
        self.actions.append(Wake(model.name, grant, why))

    def _look_again(self, at: float) -> None:
        self.look_at = min(self.look_at, at)
