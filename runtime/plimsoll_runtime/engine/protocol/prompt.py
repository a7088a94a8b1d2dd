"""A prompt's token ids, held once however many answers are made of them."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import overload

TOKEN_BYTES = 4


class Prompt(Sequence[int]):
    """Token ids in four bytes each, which never change, so that any number of sequences may hold the same object.

    Raises OverflowError for an id that is negative or too large for four bytes.
    """

    def __init__(self, ids: Iterable[int]) -> None:
        self._ids = array("I", ids)
        self._names: dict[tuple[bytes, int], list[bytes]] = {}

    @classmethod
    def of(cls, ids: Sequence[int]) -> Prompt:
        """The same object, if it is a prompt already."""
        return ids if isinstance(ids, Prompt) else cls(ids)

    @classmethod
    def from_bytes(cls, data: bytes) -> Prompt:
        """What `to_bytes` has made."""
        prompt = cls(())
        prompt._ids.frombytes(data)
        return prompt

    def to_bytes(self) -> bytes:
        """Four bytes a token, in the machine's order."""
        return self._ids.tobytes()

    @cached_property
    def extent(self) -> tuple[int, int]:
        """The lowest and the highest id, looked for once. Raises ValueError when it is empty."""
        return min(self._ids), max(self._ids)

    def names(self, root: bytes, block_size: int) -> list[bytes]:
        """The names of its full blocks behind a tenant's root, as far as anybody has made them: who needs more adds."""
        return self._names.setdefault((root, block_size), [])

    def __len__(self) -> int:
        return len(self._ids)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        return self._ids[index].tolist() if isinstance(index, slice) else self._ids[index]

    def __iter__(self) -> Iterator[int]:
        return iter(self._ids)

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Prompt({len(self)} tokens)"
