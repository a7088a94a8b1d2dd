"""Which models are pinned, and whether they fit together."""

from __future__ import annotations

from plimsoll_runtime.residency.errors import DoesNotFit
from plimsoll_runtime.residency.hoststate import HostState
from plimsoll_runtime.residency.model import Model
from plimsoll_runtime.residency.names import ModelName
from plimsoll_runtime.residency.sizes import size_text
from plimsoll_runtime.residency.steering import Steering


class Pins:
    """Sets what people give a model: pin, weight, priority."""

    def __init__(self, state: HostState, steering: Steering) -> None:
        self._state = state
        self._steering = steering

    def check(self, name: ModelName, *, pinned: bool) -> None:
        """Raises DoesNotFit where the models that are pinned would take more than the line together."""
        if not pinned:
            return
        device = self._state.memory.device
        kept = [m for m in self._state.models.values() if (m.pinned and not m.leaving) or m.name == name]
        total = sum(model.found.sizes.least for model in kept if model.found is not None)
        if total + device.reserved > device.line:
            raise DoesNotFit(
                f"{', '.join(str(model.name) for model in kept)} would take {size_text(total)} pinned together, but of "
                f"the line of {size_text(device.line)} the runtime itself takes {size_text(device.reserved)}; pin fewer"
            )

    def set(self, model: Model, *, pinned: bool, weight: float, priority: int) -> None:
        """Change them."""
        if pinned and not model.pinned:
            model.wished_at = self._state.now
        model.pinned, model.weight, model.priority = pinned, weight, priority
        self.anew()
        self._state.journal.note()

    def anew(self) -> None:
        """What did not fit may do so now."""
        for model in self._state.models.values():
            if model.unfit is not None:
                model.unfit, model.retry_at = None, self._state.now
        self._steering.kick()
