"""The exit codes of the runtime, from `plimsoll_runtime.errors` and the operator's reasons."""

from __future__ import annotations

from collections.abc import Iterator

from plimsoll_operator.status.reasons import EXIT_REASONS
from plimsoll_runtime import errors
from plimsoll_runtime.errors import ErrorKind, PlimsollError


def rows() -> Iterator[tuple[str, ...]]:
    """Yield for each exit code: code, word, meaning, reason of the operator, and whether the same command may succeed
    later.
    """
    for kind in sorted(ErrorKind, key=lambda kind: kind.exit_code):
        later = "yes" if kind.cured_by_restart else "no"
        yield str(kind.exit_code), f"`{kind.value}`", _meaning(kind), f"`{EXIT_REASONS[kind.exit_code]}`", later


def _meaning(kind: ErrorKind) -> str:
    """The docstring of the first error of a kind, on one line."""
    classes = (one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, PlimsollError))
    first = next(one for one in classes if one is not PlimsollError and one.kind is kind)
    return " ".join((first.__doc__ or "").split())
