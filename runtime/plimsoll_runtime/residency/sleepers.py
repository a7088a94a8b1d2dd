"""Which images stay in host memory, where not all can. Pure."""

from __future__ import annotations

from plimsoll_runtime.residency import reasons
from plimsoll_runtime.residency.actions import DropImage
from plimsoll_runtime.residency.states import State
from plimsoll_runtime.residency.view import HostView, ModelView


def may_drop(model: ModelView) -> bool:
    """Whether it sleeps in an image that nobody waits for."""
    return model.state is State.IN_HOST and model.image > 0 and model.asked is None and not model.fill


def by_image_value(model: ModelView) -> tuple[object, ...]:
    """What is worth least comes first."""
    return (model.image_value, model.name)


def make_room(view: HostView, comer: ModelView, size: int, free: int) -> tuple[DropImage, ...] | None:
    """Whose images give way to the `size` bytes of one that goes to sleep, where `free` are left.

    None where it cannot stay, or where what had to go would be worth more.
    """
    drops: list[DropImage] = []
    for sleeper in sorted(filter(may_drop, view.models), key=by_image_value):
        if free >= size or sleeper.image_value > comer.image_value:
            break
        why = (
            f"dropped {sleeper.name}'s image for {comer.name}'s: value {sleeper.image_value:.4g} against "
            f"{comer.image_value:.4g}, {reasons.idle(sleeper, view.now)}, "
            f"reload {reasons.duration(sleeper.seconds.from_disk)}"
        )
        drops.append(DropImage(sleeper.name, sleeper.image_value, why))
        free += sleeper.image
    return tuple(drops) if free >= size else None
