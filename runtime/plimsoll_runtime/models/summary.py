"""A program as people read it, however many layers it has."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from plimsoll_runtime.models.program import Program

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
"""Of a layer, in the name of a tensor."""
_OWN_NUMBER = re.compile(r"\b(layer|state|part)=\d+")
"""Of a cache, of a state, or of a token's input: each op's own."""


def summary(program: Program) -> str:
    """A line an op; layers that are alike once, with `{}` for their number."""
    return "\n".join(_lines(program))


def _lines(program: Program) -> Iterator[str]:
    lines = str(program).splitlines()
    alike: dict[tuple[str, ...], list[int]] = {}
    for number, (first, end) in enumerate(pairwise(program.layers)):
        alike.setdefault(tuple(_of_any(line, number) for line in lines[first:end]), []).append(number)
    yield from lines[: program.layers[0]]
    for layer, numbers in alike.items():
        yield f"layers {_ranges(numbers)}:"
        yield from (f"  {line}" for line in layer)
    yield from lines[program.layers[-1] :]


def _of_any(line: str, number: int) -> str:
    named = _NUMBER.sub(lambda found: "{}" if found[0] == str(number) else found[0], line)
    return _OWN_NUMBER.sub(r"\1={}", named)


def _ranges(numbers: Sequence[int]) -> str:
    """0, 1, 2 and 5 as "0-2, 5"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ", ".join("-".join(map(str, run)) for run in runs)
