"""Which backend computes attention: the fastest on this machine, or the one asked for, honoured or refused."""

from __future__ import annotations

from collections.abc import Sequence

from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.execution.attention.base import AttentionBackend
from plimsoll_runtime.execution.attention.catalogue import ENTRIES
from plimsoll_runtime.execution.attention.fastest import fastest_first
from plimsoll_runtime.execution.attention.nothing import NoAttention
from plimsoll_runtime.execution.attention.target import Target


def select(name: str, target: Target) -> type[AttentionBackend]:
    """The class of the backend `name`; "auto" takes the fastest that can serve the target.

    Raises UsageError for an unknown name, and for one that cannot run, with the reason.
    """
    return candidates(name, target)[0]


def candidates(name: str, target: Target) -> Sequence[type[AttentionBackend]]:
    """What `select` says, then who takes its place where it fails while it serves: nobody, for one that was asked for.

    Where no layer attends it is the one that does nothing, whichever is asked for.
    Raises UsageError as `select` does.
    """
    if name != "auto" and name not in ENTRIES:
        raise UsageError(f"--attention-backend {name} is unknown; choose auto, {', '.join(ENTRIES)}")
    if not target.shapes:
        return [NoAttention]
    if name == "auto":
        return fastest_first(target)
    if reason := ENTRIES[name].why_not(target):
        raise UsageError(f"--attention-backend {name} cannot be used here: it {reason}; choose another or auto")
    return [ENTRIES[name].load()]
