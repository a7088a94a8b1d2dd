"""What steps need whose tokens stay on a device, where the host sees them late."""

from __future__ import annotations

from dataclasses import dataclass

from plimsoll_runtime.execution.device_state import DeviceState
from plimsoll_runtime.execution.events import Event
from plimsoll_runtime.execution.graphed_choice import GraphedChoice


@dataclass(frozen=True, slots=True)
class DeviceSteps:
    """The state there; the event behind which a step's tokens are on the host; and graphs that choose them, if any."""

    state: DeviceState
    copied: Event
    choices: GraphedChoice | None = None
