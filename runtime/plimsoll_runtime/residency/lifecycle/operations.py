"""Operations by id: the same one again has no second effect, and other content under its id is a conflict."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass

from plimsoll_runtime.errors import PlimsollError, UsageError
from plimsoll_runtime.residency.errors import OperationConflict
from plimsoll_runtime.residency.report import ModelReport
from plimsoll_runtime.residency.spec import ModelName

KEPT = 4096
LONGEST_ID = 256


class Operation:
    """Something that was asked of one model. It ends once, with an error or without."""

    def __init__(self, text: str, content: str, name: ModelName) -> None:
        self.id = text
        self.content = content
        self.name = name
        self.error: PlimsollError | None = None
        self._ended = asyncio.Event()

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        return self._ended.is_set()

    def end(self, error: PlimsollError | None = None) -> None:
        """It has come to what was asked for, or never will. Only the first end counts."""
        if not self.done:
            self.error = error
            self._ended.set()

    async def wait(self) -> None:
        """Return once it has ended."""
        await self._ended.wait()


class Operations:
    """The latest ones by id. Those that have ended are forgotten, oldest first, beyond so many; no others are."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._known: OrderedDict[str, Operation] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def find(self, text: str, content: str) -> Operation | None:
        """The operation of this id, if known. Raises OperationConflict where it was another, UsageError for no id."""
        if not 0 < len(text) <= LONGEST_ID:
            raise UsageError(f"operation must be a text of 1 to {LONGEST_ID} characters that names this change")
        known = self._known.get(text)
        if known is not None and known.content != content:
            raise OperationConflict(
                f"operation {text!r} was something else before; a change needs an id of its own, and a change that is "
                "sent again its old one"
            )
        return known

    def get(self, text: str) -> Operation | None:
        """The operation of this id."""
        return self._known.get(text)

    def add(self, operation: Operation) -> None:
        """Remember a new one."""
        self._known[operation.id] = operation
        surplus = len(self._known) - self._kept
        if surplus > 0:
            ended = [known.id for known in self._known.values() if known.done and known is not operation]
            for text in ended[:surplus]:
                del self._known[text]


@dataclass(frozen=True, slots=True)
class OperationStatus:
    """An operation as it stands. `model` is None once it has been forgotten; `error` is why it ended in vain."""

    operation: str
    done: bool
    model: ModelReport | None
    error: PlimsollError | None = None
