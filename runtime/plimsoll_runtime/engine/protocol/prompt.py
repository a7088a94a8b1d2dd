"""A prompt's token ids, stored once for all outputs of the prompt."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import overload

TOKEN_BYTES = 4


class Prompt(Sequence[int]):
    """Immutable token ids of four bytes each. Any number of sequences may share the object.

    Raises OverflowError for an id that is negative or too large for four bytes.
    """

    def __init__(self, ids: Iterable[int]) -> None:
        self._ids = array("I", ids)
        self._names: dict[tuple[bytes, int], list[bytes]] = {}

    @classmethod
    def of(cls, ids: Sequence[int]) -> Prompt:
        """Return a Prompt of these ids: the same object, if it is a Prompt already."""
        return ids if isinstance(ids, Prompt) else cls(ids)

    @classmethod
    def from_bytes(cls, data: bytes) -> Prompt:
        """Parse the bytes of `to_bytes`."""
        prompt = cls(())
        prompt._ids.frombytes(data)
        return prompt

    def to_bytes(self) -> bytes:
        """Return four bytes for each token, in native byte order."""
        return self._ids.tobytes()

    @cached_property
    def extent(self) -> tuple[int, int]:
        """The lowest and the highest id, computed once. Raises ValueError for an empty prompt."""
        return min(self._ids), max(self._ids)

    def names(self, root: bytes, block_size: int) -> list[bytes]:
        """Return the hashes of the prompt's first full blocks that were computed so far, for a tenant's root hash. All
        callers get the same list, and append the hashes that they compute.
        """
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
