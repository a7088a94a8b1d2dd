"""Plans which revisions to store and which to delete: a pure function.

The present revision has the highest number, even if it equals an old one. Of the others, those that pods or a canary
need are kept, and the latest ones up to the model's limit.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace

from plimsoll_operator.build.controller_revision import Revision


@dataclass(frozen=True, slots=True)
class CreateRevision:
    """Create a revision whose name no stored revision has."""

    revision: Revision
    why: str


@dataclass(frozen=True, slots=True)
class StoreRevision:
    """Write a revision, whether it exists or not."""

    revision: Revision
    why: str


@dataclass(frozen=True, slots=True)
class ForgetRevision:
    """Delete the revision with this uid."""

    name: str
    uid: str


HistoryAction = CreateRevision | StoreRevision | ForgetRevision


def plan_history(
    known: Sequence[Revision], present: Revision, needed: Set[str], limit: int
) -> tuple[HistoryAction, ...]:
    """Return the next actions; `needed` has labels of revisions that must be kept in addition to the present one."""
    actions: list[HistoryAction] = []
    last = max((revision.number for revision in known), default=0)
    found = next((revision for revision in known if revision.name == present.name), None)
    if found is None:
        # Server-side apply can remove a mark later only if it has also written it.
        store = StoreRevision if present.mark else CreateRevision
        actions.append(store(replace(present, number=last + 1), "it is new"))
    elif found.number < last:
        why = f"the spec is that of revision {found.number} again"
        actions.append(StoreRevision(replace(found, number=last + 1, mark=present.mark), why))
    elif found.mark != present.mark:
        why = "it was rolled back" if present.mark else "it may be tried again"
        actions.append(StoreRevision(replace(found, mark=present.mark), why))
    old = [r for r in known if r.name != present.name and r.label not in needed]
    old.sort(key=lambda revision: (revision.number, revision.name), reverse=True)
    return (*actions, *(ForgetRevision(r.name, r.uid) for r in old[limit:]))
