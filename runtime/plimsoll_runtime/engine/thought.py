"""Where an answer thinks, and for how long it may."""

from __future__ import annotations

import msgspec


class Thought(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What begins and ends a thought, as a vocabulary's tokens spell it.

    A thought stands at the beginning of an answer, after white space at most, or where `anywhere` wherever it begins.
    With `open` the prompt ends within one.

    - `budget`: how many tokens an answer's thoughts may have, markers not counted; None: as many as come. When they are
      used up the next tokens are `closing`: each is one of several.
    - `implied`: what ends a thought as well, being part of what follows. Within a thought that a constraint follows the
      tokens `barred` are forbidden, so that its own end comes first.
    - `answer`: what stands before the part that the answer's constraint holds for, one after the other. Empty: it holds
      for all of the answer. None: for what no thought is.
    - `steer`: before a constrained answer, these tokens alone may follow some bytes, so that nothing is said there.
    - `opening`: the token that alone spells `begin`, which may come before a constrained answer; None where several do,
      so that a constrained answer begins with no thought of its own.
    - `gap`: the tokens between a thought and a constrained answer.
    """

    begin: bytes
    end: bytes
    open: bool = False
    anywhere: bool = False
    budget: int | None = None
    closing: tuple[tuple[int, ...], ...] = ()
    implied: tuple[bytes, ...] = ()
    barred: tuple[int, ...] = ()
    answer: tuple[bytes, ...] | None = None
    steer: tuple[bytes, tuple[int, ...]] | None = None
    opening: int | None = None
    gap: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Raises ValueError for markers of no bytes, and for a budget that could not be kept to."""
        if not self.begin or not self.end or not all((*self.implied, *(self.answer or ()))):
            raise ValueError("the markers of a thought have one byte at least")
        if self.budget is not None and (self.budget < 0 or not all(self.closing) or not self.closing):
            raise ValueError("a budget is not negative, and needs tokens that end a thought")
