"""What a process remembers of a pool between reconciles; the next leader learns it again."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from plimsoll_operator.placement.records.model import Need
from plimsoll_operator.placement.records.plan import Refusal
from plimsoll_operator.placement.records.pool import Demand
from plimsoll_operator.pools.hosts.host_registry import Known
from plimsoll_operator.pools.hosts.inventory import Asked
from plimsoll_operator.pools.hosts.report import ModelEntry
from plimsoll_operator.pools.model_placement import Problem
from plimsoll_operator.spec.identity import ObjectKey


@dataclass(frozen=True, slots=True)
class Refused:
    """A rejected action, and when it may be sent again (seconds since the epoch)."""

    revision: str
    until: float
    message: str


@dataclass(slots=True)
class PlacerState:
    """State of a pool.

    `decided`: a plan has been made. `admitted`: models that may be on its hosts, None while undecided. `held`: model ->
    why it is not placed for the first time yet. `files`: NAMESPACE/NAME of the pool's claim for files and batch jobs,
    "" for none. `placements`: model -> name of its host in the last plan -> reason. `asked`: uid of a host's pod ->
    model -> action that the host has accepted and its report does not show yet. `refused`: (uid of a host's pod, model)
    -> rejected action. `waiting`: model -> since when requests for it wait at hosts. `moved`: model -> when a host last
    accepted a move of it. Times are seconds since the epoch. `sizes`: (model, revision) -> reported size.
    """

    decided: bool = False
    refusals: dict[ObjectKey, Refusal] = field(default_factory=dict)
    problems: dict[ObjectKey, Problem] = field(default_factory=dict)
    held: dict[ObjectKey, str] = field(default_factory=dict)
    files: str = ""
    admitted: frozenset[ObjectKey] | None = None
    placements: dict[ObjectKey, dict[str, str]] = field(default_factory=dict)
    asked: dict[str, dict[ObjectKey, Asked]] = field(default_factory=dict)
    refused: dict[tuple[str, ObjectKey], Refused] = field(default_factory=dict)
    waiting: dict[ObjectKey, float] = field(default_factory=dict)
    moved: dict[ObjectKey, float] = field(default_factory=dict)
    sizes: dict[tuple[ObjectKey, str], Need] = field(default_factory=dict)

    def about(self, model: ObjectKey) -> tuple[Problem | None, Refusal | None, dict[str, str] | None, str | None]:
        """Return the results of the last plan that a model's status shows: its problem, its refusal, the reason by
        planned host, and why its first placement waits; None for each that is absent.
        """
        return self.problems.get(model), self.refusals.get(model), self.placements.get(model), self.held.get(model)

    def forget_shown(self, hosts: Sequence[Known], now: float) -> None:
        """Discard accepted actions that reports show or that are too old, and rejections that have expired."""
        reports = {known.pod.uid: known for known in hosts}
        for uid in list(self.asked):
            known = reports.get(uid)
            left = {
                model: asked
                for model, asked in self.asked[uid].items()
                if known is not None and asked.is_open(known.report, known.entries.get(model), now)
            }
            self.asked[uid] = left
            if not left:
                del self.asked[uid]
        self.refused = {
            place: refused for place, refused in self.refused.items() if refused.until > now and place[0] in reports
        }

    def forget_moves(self, members: Collection[ObjectKey]) -> None:
        """Discard the moves of models that do not name this pool."""
        self.moved = {model: at for model, at in self.moved.items() if model in members}

    def measure(self, hosts: Sequence[Known], stored: Iterable[tuple[ObjectKey, str, Need]] = ()) -> None:
        """Store the reported sizes, the largest of each revision.

        For a model that a host reports without a size, the last known size of the revision is kept. Sizes of revisions
        that no host has are dropped. `stored` are the sizes of hosts that have not reported to this process.
        """
        before, self.sizes = self.sizes, {}
        entries = (entry for known in hosts for entry in known.entries.values())
        told = (
            (entry.key, entry.revision, _need(entry) or before.get((entry.key, entry.revision), Need(0)))
            for entry in entries
        )
        for model, revision, found in (*told, *stored):
            other = self.sizes.get((model, revision), found)
            self.sizes[model, revision] = max(found, other, key=lambda need: (need.device, need.host))

    def demand(self, hosts: Sequence[Known], now: float) -> Iterable[Demand]:
        """Return a Demand for each model with requests that wait at hosts. It has only `since`, when this process first
        saw them: hosts' reports have their number.
        """
        waiting = {model for known in hosts for model, entry in known.entries.items() if entry.waiting}
        self.waiting = {model: self.waiting.get(model, now) for model in waiting}
        return (Demand(model, waiting=0, since=since) for model, since in sorted(self.waiting.items()))


def _need(entry: ModelEntry) -> Need | None:
    """Return the reported need of a model; None while its files are fetched."""
    found = entry.needs
    return None if found is None else Need(found.weights, found.workspace, found.kv, found.image)
