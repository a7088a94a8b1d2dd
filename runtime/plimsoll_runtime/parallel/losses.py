"""Why generations of ranks end."""

from __future__ import annotations

from enum import StrEnum

from plimsoll_runtime.errors import EngineDeadError


class LossCause(StrEnum):
    """The cause of the end of a generation, as metrics count it. `MEMBER_LOST`: its connection has ended."""

    RANK_ENDED = "rank_ended"
    RANK_HUNG = "rank_hung"
    MEMBER_LOST = "member_lost"
    MEMBER_LEFT = "member_left"
    OTHER = "other"


class LossError(EngineDeadError):
    """A rank or a member was lost."""

    def __init__(self, message: str, cause: LossCause) -> None:
        super().__init__(message)
        self.cause = cause


class RankLostError(Exception):
    """The ranks cannot compute steps any more, because one has ended or hangs."""

    def __init__(self, message: str, cause: LossCause = LossCause.OTHER) -> None:
        super().__init__(message)
        self.cause = cause


def cause_of(error: BaseException) -> LossCause:
    """Return the cause that an error has, or OTHER."""
    return error.cause if isinstance(error, LossError | RankLostError) else LossCause.OTHER
