"""Records which hosts the planner weighed for one model, for `explain`."""

from __future__ import annotations

from collections.abc import Sequence

from plimsoll_cluster.keys import ObjectKey
from plimsoll_operator.placement.host_option import HostOption
from plimsoll_operator.placement.ledger import Known
from plimsoll_operator.placement.retention_value import HALF_LIFE
from plimsoll_operator.placement.units import size, span


class Journal:
    """Records the options of the model `key` as lines of text; records nothing if `key` is None."""

    def __init__(self, key: ObjectKey | None = None) -> None:
        self._key = key
        self.lines: list[str] = []

    def weighed(self, known: Known, why: str, options: Sequence[HostOption]) -> None:
        """Record all hosts, best first, with the costs of the model awake there or the obstacle."""
        if known.model.key == self._key:
            self.lines.append(f"To be awake ({why}):")
            self.lines += [f"  {number}. {_awake(option)}" for number, option in enumerate(options, 1)]

    def listed(self, known: Known, options: Sequence[HostOption]) -> None:
        """Record the hosts that could take the model's files, best first."""
        if known.model.key == self._key:
            self.lines.append("To have its files on another host:")
            self.lines += [
                f"  {number}. {option.ledger.key}: would hold {option.taken:.0%} of its fair share of the pool's models"
                f"{_wishes(option)}"
                for number, option in enumerate(options, 1)
            ]


def _awake(option: HostOption) -> str:
    if option.obstacle is not None:
        return f"{option.ledger.key}: no ({option.obstacle}): {option.note}"
    home = "has a copy" if option.own is not None else "fetches it from another host or from its source"
    if option.evictions:
        names = ", ".join(f"{slot.copy.model} ({size(slot.device)})" for slot in option.evictions)
        lost = f"{option.lost:.2g} s of loading within {span(HALF_LIFE)} (weighted)"
        cost = f"puts {names} to sleep, which is expected to cost {lost}"
    else:
        cost = "has free memory"
    after = f"{option.taken:.0%} of its line used afterwards{_wishes(option)}"
    return f"{option.ledger.key}: {span(option.seconds)}, {home}, {cost}, {after}"


def _wishes(option: HostOption) -> str:
    return f", violates {option.disregarded} of spread, affinity and pressure" if option.disregarded else ""
