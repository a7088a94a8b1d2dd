"""What a process remembers of a pool between passes; another one finds it out anew."""

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
    """What a host would not do, and when it may be asked again (seconds since the epoch)."""

    revision: str
    until: float
    message: str


@dataclass(slots=True)
class PlacerState:
    """`asked` and `refused` go by the uids of pods, `waiting` and `moved` are times in seconds since the epoch.

    `admitted` are the models that may be on its hosts, None while that is not decided. `held` says for each model whose
    first placement waits what for. `files` is the claim that its hosts keep files on, as in `ModelPlacement`.
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

    def forget_shown(self, hosts: Sequence[Known], now: float) -> None:
        """What reports show by now, or what was asked too long ago, is no longer overlaid."""
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
        """Of models that want to be in the pool no more."""
        self.moved = {model: at for model, at in self.moved.items() if model in members}

    def measure(self, hosts: Sequence[Known], stored: Iterable[tuple[ObjectKey, str, Need]] = ()) -> None:
        """Sizes as hosts tell them, the largest of each revision; what no host can tell now stays as it was.

        `stored` are those of hosts that have not reported to this process yet.
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
        """Since when requests wait at hosts, as far as this process has seen it."""
        waiting = {model for known in hosts for model, entry in known.entries.items() if entry.waiting}
        self.waiting = {model: self.waiting.get(model, now) for model in waiting}
        return (Demand(model, waiting=0, since=since) for model, since in sorted(self.waiting.items()))


def _need(entry: ModelEntry) -> Need | None:
    """What a host says that a model takes. One of an older release says it of models that are awake alone."""
    if entry.needs is not None:
        return Need(entry.needs.weights, entry.needs.workspace, entry.needs.kv, entry.needs.image)
    return Need(entry.weights, entry.workspace, entry.kv, entry.host_bytes) if entry.weights else None
