"""Which revisions to store, and which to forget: a pure function.

The present one has the highest number, also where it is an old one that somebody has gone back to. Of the others those
stay that pods or a canary still need, and as many more as the model's limit says, the latest first.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace

from plimsoll_operator.build.controller_revision import Revision


@dataclass(frozen=True, slots=True)
class CreateRevision:
    """Make the revision: none of its name is known."""

    revision: Revision
    why: str


@dataclass(frozen=True, slots=True)
class StoreRevision:
    """Write the revision as it stands here, whether it is there or not."""

    revision: Revision
    why: str


@dataclass(frozen=True, slots=True)
class ForgetRevision:
    """Delete the one with this uid."""

    name: str
    uid: str


HistoryAction = CreateRevision | StoreRevision | ForgetRevision


def plan_history(
    known: Sequence[Revision], present: Revision, needed: Set[str], limit: int
) -> tuple[HistoryAction, ...]:
    """`needed` has the labels of revisions that must not be forgotten, beside the present one."""
    actions: list[HistoryAction] = []
    last = max((revision.number for revision in known), default=0)
    found = next((revision for revision in known if revision.name == present.name), None)
    if found is None:
        # A mark can be taken away again by server-side apply only where that has written it.
        store = StoreRevision if present.mark else CreateRevision
        actions.append(store(replace(present, number=last + 1), "it is new"))
    elif found.number < last:
        why = f"the spec is that of revision {found.number} again"
        actions.append(StoreRevision(replace(found, number=last + 1, mark=present.mark), why))
    elif found.mark != present.mark:
        why = "it was taken back" if present.mark else "it may be tried again"
        actions.append(StoreRevision(replace(found, mark=present.mark), why))
    old = [r for r in known if r.name != present.name and r.label not in needed]
    old.sort(key=lambda revision: (revision.number, revision.name), reverse=True)
    return (*actions, *(ForgetRevision(r.name, r.uid) for r in old[limit:]))
