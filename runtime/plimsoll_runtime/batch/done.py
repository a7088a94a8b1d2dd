"""Which rows are done, in memory that grows with how far they are out of order and not with how many there are."""

from __future__ import annotations

from collections.abc import Iterable


class Done:
    """All numbers below `upto`, and some beyond."""

    __slots__ = ("beyond", "upto")

    def __init__(self, upto: int = 0, beyond: Iterable[int] = ()) -> None:
        self.upto = upto
        self.beyond = set(beyond)

    def __contains__(self, number: int) -> bool:
        return number < self.upto or number in self.beyond

    def __len__(self) -> int:
        return self.upto + len(self.beyond)

    def add(self, number: int) -> None:
        """One more is done; it was not before."""
        assert number not in self, f"row {number} is done twice"
        self.beyond.add(number)
        while self.upto in self.beyond:
            self.beyond.remove(self.upto)
            self.upto += 1

    def check_integrity(self) -> None:
        """Raises AssertionError where what is beyond is not."""
        assert all(number > self.upto for number in self.beyond), (self.upto, self.beyond)
