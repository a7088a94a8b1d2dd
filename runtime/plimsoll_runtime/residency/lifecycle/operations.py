"""Operations by id: repeating one has no second effect, and other content with the same id is a conflict."""

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
    """A requested change of one model. It ends once, with or without an error."""

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
        """End the operation, successfully or with an error. Further calls are ignored."""
        if not self.done:
            self.error = error
            self._ended.set()

    async def wait(self) -> None:
        """Return when it has ended."""
        await self._ended.wait()


class Operations:
    """The latest operations by id. If there are more than `kept`, the oldest ended ones are forgotten; others never
    are.
    """

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._known: OrderedDict[str, Operation] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def find(self, text: str, content: str) -> Operation | None:
        """Return the operation of this id, if known. Raises OperationConflict for other content, UsageError for a bad
        id.
        """
        if not 0 < len(text) <= LONGEST_ID:
            raise UsageError(f"operation must be an id of 1 to {LONGEST_ID} characters")
        known = self._known.get(text)
        if known is not None and known.content != content:
            raise OperationConflict(
                f"operation id {text!r} was used for another change; give each change a new id, and repeat the id "
                "only to retry the same change"
            )
        return known

    def get(self, text: str) -> Operation | None:
        """Return the operation of this id, if known."""
        return self._known.get(text)

    def add(self, operation: Operation) -> None:
        """Store a new operation."""
        self._known[operation.id] = operation
        surplus = len(self._known) - self._kept
        if surplus > 0:
            ended = [known.id for known in self._known.values() if known.done and known is not operation]
            for text in ended[:surplus]:
                del self._known[text]


@dataclass(frozen=True, slots=True)
class OperationStatus:
    """The status of an operation. `model` is None after the model was removed; `error` is the reason of a failure."""

    operation: str
    done: bool
    model: ModelReport | None
    error: PlimsollError | None = None
