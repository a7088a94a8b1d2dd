"""Decodes what the leader of a group answers on `/health` into words for a message. Pods are not trusted."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from plimsoll_cluster.decode_errors import UNREADABLE
from plimsoll_operator.status.conditions import cut

LIMIT = 64 * 2**10
"""The most bytes of an answer."""
WORDS_LIMIT = 300
PER_CENT_STEP = 10
"""Percentages are rounded down to a multiple of this, because each new one is a write of the status."""
WAITING = "wait for "
"""Start of stages whose fraction is no progress of the load."""
FAILED = "failed"
"""Status of a server whose engine has ended. Its process ends soon, and `reason` is a kind of error."""


class BadHealthError(Exception):
    """The answer is not valid; the message says why."""


class _Health(Struct, frozen=True):
    """`plimsoll_runtime.api.server.state.ServerState.report`; a contract test compares them."""

    status: str
    stage: str = ""
    reason: str = ""
    fraction: Annotated[float, Meta(ge=0, le=1)] = 0.0


def read_words(body: bytes) -> str:
    """Return why the leader does not serve: the last loss, and the present stage. "" if it says that it serves.

    The text is one line of at most `WORDS_LIMIT` printable characters. Raise BadHealthError.
    """
    if len(body) > LIMIT:
        raise BadHealthError(f"it is larger than {LIMIT} bytes")
    try:
        found = msgspec.json.decode(body, type=_Health)
    except UNREADABLE as error:
        raise BadHealthError(_printable(str(error))) from error
    parts = [part for part in (found.reason, _stage(found)) if part and not part.isspace()]
    if found.status == FAILED:
        parts.insert(0, FAILED)
    return _printable("; ".join(parts))


def _stage(health: _Health) -> str:
    per_cent = int(health.fraction * 100) // PER_CENT_STEP * PER_CENT_STEP
    if not health.stage or not per_cent or health.stage.startswith(WAITING):
        return health.stage
    return f"{health.stage} {per_cent}%"


def _printable(text: str) -> str:
    """Return the start of a text on one line, with ? for characters that are not printable."""
    line = " ".join(text[: 2 * WORDS_LIMIT].split())
    return cut("".join(each if each.isprintable() else "?" for each in line), WORDS_LIMIT)
