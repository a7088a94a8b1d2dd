"""Chooses the models and images that could be evicted for another model. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from plimsoll_runtime.residency.planner import actions
from plimsoll_runtime.residency.planner.actions import DropImage
from plimsoll_runtime.residency.planner.view import HostView, ModelView
from plimsoll_runtime.residency.settings import Settings
from plimsoll_runtime.residency.states import State


@dataclass(frozen=True, slots=True)
class EvictionSet:
    """Models to put to sleep, and KV caches to shrink to a number of bytes; together they release `gained` bytes."""

    victims: tuple[ModelView, ...]
    shrinks: tuple[tuple[ModelView, int], ...]
    gained: int


def may_leave(model: ModelView) -> bool:
    """Return whether a model is resident and not pinned."""
    return model.state is State.RESIDENT and not model.pinned


def is_idle(model: ModelView, settings: Settings, now: float) -> bool:
    """Return whether a model can be evicted right away: nothing in flight, and older than the minimum residency."""
    return may_leave(model) and model.active == 0 and now >= model.since + settings.minimum_residency


def turn_of(model: ModelView, settings: Settings) -> float:
    """Return when a resident model's service slice ends."""
    return model.since + settings.turn(model.reload_seconds)


def by_value(model: ModelView) -> tuple[object, ...]:
    """Sort key: lowest priority first, then lowest value."""
    return (model.priority, model.value, model.name)


def by_turn(settings: Settings, now: float) -> Callable[[ModelView], tuple[object, ...]]:
    """Return a sort key: earliest end of the service slice first; if it is over, idle models first, by value."""
    return lambda model: (max(now, turn_of(model, settings)), model.active > 0, *by_value(model))


def choose(models: Sequence[ModelView], candidates: Sequence[ModelView], shortfall: int) -> EvictionSet | None:
    """Choose as few candidates, in order, as release `shortfall` bytes together with spare KV cache of other models.

    Return None if all of them together do not.
    """
    picked: list[ModelView] = []
    for candidate in (None, *candidates):
        if candidate is not None:
            picked.append(candidate)
        if _gain(models, picked) >= shortfall:
            break
    else:
        return None
    for victim in tuple(reversed(picked)):
        rest = [other for other in picked if other is not victim]
        if _gain(models, rest) >= shortfall:
            picked = rest
    return _room(models, picked, shortfall)


def _gain(models: Sequence[ModelView], picked: Sequence[ModelView]) -> int:
    names = {victim.name for victim in picked}
    return sum(_total(victim) for victim in picked) + sum(m.spare_kv for m in models if m.name not in names)


def _room(models: Sequence[ModelView], picked: Sequence[ModelView], shortfall: int) -> EvictionSet:
    gained = sum(map(_total, picked))
    names = {victim.name for victim in picked}
    shrinks: list[tuple[ModelView, int]] = []
    for model in sorted((m for m in models if m.spare_kv and m.name not in names), key=by_value):
        if gained >= shortfall:
            break
        given = min(model.spare_kv, shortfall - gained)
        assert model.grant is not None
        shrinks.append((model, model.grant.kv - given))
        gained += given
    return EvictionSet(tuple(picked), tuple(shrinks), gained)


def _total(model: ModelView) -> int:
    """Return the bytes that evicting a model releases beyond those that it is releasing already."""
    assert model.grant is not None
    return model.grant.total - model.coming


def may_drop(model: ModelView) -> bool:
    """Return whether a sleeping model's image may be dropped: nothing wants the model awake, or its image in host
    memory.
    """
    return model.state is State.IN_HOST and model.image > 0 and model.asked is None and not model.fill


def by_image_value(model: ModelView) -> tuple[object, ...]:
    """Sort key: lowest value first."""
    return (model.image_value, model.name)


def make_room(view: HostView, comer: ModelView, size: int, free: int) -> tuple[DropImage, ...] | None:
    """Return the images to drop for the `size` bytes of a model that goes to sleep, if `free` bytes are left.

    Return None if its image cannot stay, or if the images to drop would be worth more.
    """
    drops: list[DropImage] = []
    for sleeper in sorted(filter(may_drop, view.models), key=by_image_value):
        if free >= size or sleeper.image_value > comer.image_value:
            break
        why = (
            f"dropped {sleeper.name}'s image for {comer.name}'s: value {sleeper.image_value:.4g} against "
            f"{comer.image_value:.4g}, {actions.idle(sleeper, view.now)}, "
            f"reload {actions.duration(sleeper.seconds.from_disk)}"
        )
        drops.append(DropImage(sleeper.name, sleeper.image_value, why))
        free += sleeper.image
    return tuple(drops) if free >= size else None
