"""Who wakes, who gives way, and why: a pure function of what is there and of who is asked for.

Models that are wanted are looked at in the order in which they were first asked for. One that fits into free memory
wakes. Else KV caches give up what they do not use, and models that are idle and worth less go (the churn guard: what
must go may not be worth more, in expected seconds of loading, than what comes). Else it waits for its turn: it comes
once it has waited as long as the swap would cost in loading (or for `patience`, if that is less) and those who must go
have served for a slice (twice what bringing them back takes, within bounds); then they finish what they have and go.
Whoever is first keeps what he will need; others may pass him only into what he leaves. So everybody's turn comes, and
no model is swapped more often than once a slice.
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
"""A KV cache grows by an eighth at least, or not at all."""
LEAD = 5.0
"""Seconds before a foretold request at which its model should be awake."""
LATE = 30.0
"""Seconds after which a foretold request is not expected any more."""


def plan(view: HostView, settings: Settings) -> Plan:
    """The actions that are possible and right now. The same view has the same plan."""
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
    """Whether what must go may go at once: it is worth no more than what comes, or ranks below it."""
    if any(victim.priority > wanted.priority for victim in room.victims):
        return False
    return sum(victim.worth for victim in room.victims if victim.priority == wanted.priority) <= wanted.worth


def _is_wanted(model: ModelView) -> bool:
    return model.asked is not None and model.state in ASLEEP


def _is_young(model: ModelView, settings: Settings, now: float) -> bool:
    """Whether it may not be evicted yet, but for its age."""
    return may_leave(model) and now < model.since + settings.minimum_residency


class _Draft:
    """A plan in the making.

    `free` can be granted now. `later` is what will be left once everybody who was admitted before is in and those who
    go have gone; what wakes now must fit into both.
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
        """Wake it, make room for it, or say why not."""
        if self._cannot(wanted):
            return
        need = wanted.sizes.least
        if need <= min(self._free, self._later):
            self._wake(wanted, actions.woken(wanted, self._view.now))
            return
        self.crowded = True
        if need <= self._later:
            self._later -= need
            self.actions.append(Wait(wanted.name, "room is being made for it"))
        else:
            self._make_room(wanted, need - self._later)

    def relieve(self) -> None:
        """Give something up before the kernel does: one thing at each look at the memory."""
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
            # Where memory is one, only what is dropped is free.
            text = f"evicted {idle[0].name}: {why}, {actions.idle(idle[0], view.now)}"
            self._sleep(idle[0], text, keep=over or not view.shared)

    def resume(self) -> None:
        """Whoever drains for nobody goes on."""
        if self._view.pressure is not Pressure.NONE or self._view.free < 0:
            return
        for model in self._view.models:
            if model.state is State.DRAINING and model.yielding:
                self.actions.append(Resume(model.name, f"{model.name} goes on: nobody waits for its room any more"))
                self._later -= model.coming

    def fill(self) -> None:
        """Bring images into host memory that an operation wants there, through memory that is free."""
        for model in self._view.models:
            if model.fill and model.asked is None and model.state is State.ON_DISK and not self._cannot(model):
                self._wake_if_free(model, "its image is wanted in host memory")

    def preload(self) -> None:
        """Wake what its rhythm foretells, into free memory only."""
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
                self._wake_if_free(model, f"woken into free memory: a request is foretold in {away}")

    def grow(self) -> None:
        """Give KV caches that are nearly full more of what is free."""
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
        """Whether it cannot wake whatever others do; if so, that was said."""
        view = self._view
        if wanted.retry_at > view.now:
            self.actions.append(Wait(wanted.name, "it failed and is not tried again yet", wanted.retry_at))
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
            self.actions.append(Wait(wanted.name, "others are on their way in or out, or use their memory"))
            self._later = 0
            return
        asked = now if wanted.asked is None else wanted.asked
        # As in renting skis: whoever waits until waiting has cost what buying would, pays twice the best at most.
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
        self.actions.append(Wait(wanted.name, f"its turn comes in {actions.duration(turn - now)}, after {names}", turn))
        self._look_again(turn)
        self._later += room.gained - wanted.sizes.least
        for model in (*room.victims, *(model for model, _ in room.shrinks)):
            del self._models[model.name]

    def _evict(self, wanted: ModelView, room: EvictionSet, whys: list[str]) -> None:
        """Make the room that was chosen, and keep it for whom it is for."""
        for victim, why in zip(room.victims, whys, strict=True):
            self._sleep(victim, why)
        for model, kv in room.shrinks:
            self._resize(model, kv, f"{model.name}'s KV cache shrinks for {wanted.name}")
        self._later += room.gained - wanted.sizes.least
        self.actions.append(Wait(wanted.name, "room is being made for it"))

    def _sleep(self, victim: ModelView, why: str, *, keep: bool = True) -> None:
        self.actions.append(Sleep(victim.name, Level.IN_HOST if keep else Level.ON_DISK, victim.value, why))
        del self._models[victim.name]

    def _resize(self, model: ModelView, kv: int, why: str) -> None:
        self.actions.append(Resize(model.name, kv, why))
        # Once a plan is enough.
        del self._models[model.name]

    def _wake_if_free(self, model: ModelView, why: str) -> None:
        if model.sizes.least <= min(self._free, self._later):
            self._wake(model, why)

    def _wake(self, model: ModelView, why: str) -> None:
        """With half of the memory that is left for its KV cache, as far as that is of use to it."""
        sizes = model.sizes
        rest = min(self._free, self._later) - sizes.least
        grant = Grant(sizes.weights, sizes.workspace, min(sizes.kv_useful, sizes.kv_minimum + rest // 2))
        self._free -= grant.total
        self._later -= grant.total
        self.actions.append(Wake(model.name, grant, why))

    def _look_again(self, at: float) -> None:
        self.look_at = min(self.look_at, at)
