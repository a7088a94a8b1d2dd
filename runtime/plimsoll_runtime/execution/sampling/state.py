"""Sampling parameters of the sequences in the slots, kept between steps, and repeatable random numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plimsoll_kernels.sampling.params import RowParams
from plimsoll_runtime.engine.protocol.plan import SlotDraw, SlotInit
from plimsoll_runtime.execution.sampling.logits_processors import Adjustments, adjustments_of, changes_logits
from plimsoll_runtime.models.layers.device_copy import to_device

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_DOUBLE_BITS = np.uint64(11)


def uniforms(seeds: NDArray[np.int64], indices: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return uniform numbers in [0, 1), one for each pair of a seed and a token index (int64 [R], int64 [R] -> float64
    [R]).

    A number depends on the request's seed and the index of the token only, so it is the same in any batch, and after a
    preemption. The mixing function is SplitMix64's finaliser (Steele, Lea and Flood, "Fast splittable pseudorandom
    number generators", 2014), applied once to the seed and once with the index.
    """
    with np.errstate(over="ignore"):
        state = _mix(seeds.astype(np.uint64) + _GAMMA)
        state = _mix(state ^ ((indices.astype(np.uint64) + np.uint64(1)) * _GAMMA))
    return (state >> _DOUBLE_BITS).astype(np.float64) * 2.0**-53


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * _MIX_1
    z = (z ^ (z >> np.uint64(27))) * _MIX_2
    return z ^ (z >> np.uint64(31))


@dataclass(frozen=True, slots=True)
class PlainRows:
    """R rows without penalties, biases, masks or reports, in host memory.

    slots int64 [R]; uniforms float64 [R] in [0, 1); temperature, top_p, min_p float32 [R], top_k int32 [R]: see
    RowParams.
    """

    slots: NDArray[np.int64]
    uniforms: NDArray[np.float64]
    temperature: NDArray[np.float32]
    top_k: NDArray[np.int32]
    top_p: NDArray[np.float32]
    min_p: NDArray[np.float32]

    @classmethod
    def none(cls) -> PlainRows:
        """Return no rows."""
        empty: NDArray[Any] = np.zeros(0)
        return cls(empty, empty, empty, empty, empty, empty)


COLDEST = 1e-4
"""Temperatures below this are practically greedy, and logits divided by them would overflow float32."""

NO_TOKEN = -1

_FEWEST = 64


def draw_of(init: SlotInit) -> SlotDraw:
    """Return how the tokens of a sequence that takes a slot are drawn."""
    params = init.context.params
    limited = params.constraint is not None or (params.thought is not None and params.thought.budget is not None)
    return SlotDraw(
        slot=init.slot,
        temperature=0.0 if params.greedy else max(params.temperature, COLDEST),
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        seed=init.context.seed,
        num_outputs=len(init.output_ids),
        whole=limited or params.logprobs is not None or changes_logits(params),
    )


@dataclass(frozen=True)
class Rows:
    """The constants of steps that sample the same slots: computed once, used for every step of a steady batch.

    `places` are the rows' slots. `adjusted` has the changes of rows' logits, by row. If it is empty and no row `draws`,
    the number of a row's tokens is not needed and not `counted`. `reporting` are the rows with log probabilities, and
    `alternatives` their numbers of alternatives. Tensors on the logits' `device` are sent on first use: a graph sends
    the parameters with a step instead.
    """

    slots: tuple[int, ...]
    places: NDArray[np.int64]
    arrays: SlotArrays
    device: torch.device
    adjusted: Mapping[int, Adjustments]
    draws: bool
    counted: bool
    reporting: tuple[int, ...]
    alternatives: tuple[int, ...]

    @cached_property
    def params(self) -> RowParams:
        """The sampling parameters of the rows, on the logits' device."""
        return self.arrays.params(self.places, self.device)

    @cached_property
    def undrawn(self) -> Tensor:
        """Placeholder of the uniform numbers if no row draws."""
        return torch.zeros(len(self.slots), dtype=torch.float64, device=self.device)

    @cached_property
    def reported(self) -> Tensor | None:
        """`reporting` on the device; None if there are none."""
        return to_device(np.array(self.reporting), self.device) if self.reporting else None

    @cached_property
    def unasked(self) -> PlainRows | None:
        """The rows, with 0 as every uniform random number; None if a row has changes of logits or log probabilities."""
        if self.adjusted or self.reporting:
            return None
        arrays, places = self.arrays, self.places
        return PlainRows(
            *(places, np.zeros(len(places)), arrays.temperature[places], arrays.top_k[places]),
            *(arrays.top_p[places], arrays.min_p[places]),
        )


class SamplingState:
    """The sampling parameters of each slot, from which the rows of steps are picked."""

    def __init__(self, vocab_size: int, eos_token_ids: tuple[int, ...]) -> None:
        self._vocab_size = vocab_size
        self._eos = eos_token_ids
        self._arrays = SlotArrays()
        self._adjustments: dict[int, Adjustments] = {}
        self._reports: dict[int, int] = {}
        self._prompt_reports: dict[int, int] = {}
        self._rows: Rows | None = None

    def fill(self, init: SlotInit) -> None:
        """Store the parameters of a sequence that takes a slot."""
        self._arrays.fill(draw_of(init), self._vocab_size)
        adjustments = adjustments_of(init, self._eos, self._vocab_size)
        if adjustments is not None:
            self._adjustments[init.slot] = adjustments
        params = init.context.params
        if params.logprobs is not None:
            self._reports[init.slot] = params.logprobs
        if params.prompt_logprobs is not None:
            self._prompt_reports[init.slot] = params.prompt_logprobs
        self._rows = None

    def free(self, slot: int) -> None:
        """Forget the parameters of a slot, whose sequence has left it."""
        self._arrays.free(slot)
        for kept in (self._adjustments, self._reports, self._prompt_reports):
            kept.pop(slot, None)
        self._rows = None

    def prompt_logprob_count(self, slot: int) -> int:
        """Return the number of alternatives that a prompt position of this slot reports."""
        return self._prompt_reports.get(slot, 0)

    def rows(self, slots: tuple[int, ...], device: torch.device) -> Rows:
        """Return the rows of a step's logits. Raises KeyError if a slot is empty."""
        if self._rows is None or self._rows.slots != slots:
            self._rows = self._pick(slots, device)
        return self._rows

    def num_outputs(self, rows: Rows) -> NDArray[np.int64]:
        """Return the number of generated tokens of each row, including those before a preemption `[R]`."""
        return self._arrays.num_outputs[rows.places]

    def uniforms(self, rows: Rows, device: torch.device) -> Tensor:
        """Return a number in [0, 1) for each row's next token, float64 [R]; placeholders if no row draws."""
        return to_device(self._drawn(rows), device) if rows.draws else rows.undrawn

    def plain(self, rows: Rows) -> PlainRows | None:
        """Return rows that only have parameters, with random numbers for their next tokens; None if some have more."""
        found = rows.unasked
        return replace(found, uniforms=self._drawn(rows)) if found is not None and rows.draws else found

    def count(self, rows: Rows) -> None:
        """Count one more generated token for each row."""
        self._arrays.num_outputs[rows.places] += 1

    def record(self, rows: Rows, tokens: Sequence[int]) -> None:
        """Add sampled tokens to the histories that penalties read. NO_TOKEN, of a row without a token, is ignored."""
        for row, adjustments in rows.adjusted.items():
            if adjustments.history is not None and tokens[row] != NO_TOKEN:
                adjustments.history.add(tokens[row])

    def record_forced(self, slot: int, tokens: Sequence[int]) -> None:
        """Count the forced tokens of a slot as generated, and add them to the history that its penalties read."""
        self._arrays.num_outputs[slot] += len(tokens)
        adjustments = self._adjustments.get(slot)
        if adjustments is not None and adjustments.history is not None:
            for token in tokens:
                adjustments.history.add(token)

    def _drawn(self, rows: Rows) -> NDArray[np.float64]:
        arrays = self._arrays
        return uniforms(arrays.seeds[rows.places], arrays.num_outputs[rows.places])

    def _pick(self, slots: tuple[int, ...], device: torch.device) -> Rows:
        places = self._arrays.places(slots)
        reporting = [row for row, slot in enumerate(slots) if slot in self._reports] if self._reports else []
        known = self._adjustments
        adjusted = {row: known[slot] for row, slot in enumerate(slots) if slot in known} if known else {}
        draws = bool(self._arrays.temperature[places].any())
        return Rows(
            slots=slots,
            places=places,
            arrays=self._arrays,
            device=device,
            adjusted=adjusted,
            draws=draws,
            counted=draws or bool(adjusted),
            reporting=tuple(reporting),
            alternatives=tuple(self._reports[slots[row]] for row in reporting),
        )


class SlotArrays:
    """Parameters, seed and number of generated tokens (including those before a preemption) of each slot."""

    def __init__(self) -> None:
        self._taken = np.zeros(0, dtype=np.bool_)
        self.temperature = np.zeros(0, dtype=np.float32)
        self.top_k = np.zeros(0, dtype=np.int32)
        self.top_p = np.zeros(0, dtype=np.float32)
        self.min_p = np.zeros(0, dtype=np.float32)
        self.seeds = np.zeros(0, dtype=np.int64)
        self.num_outputs = np.zeros(0, dtype=np.int64)

    def fill(self, draw: SlotDraw, vocab_size: int) -> None:
        """Store the parameters of a sequence that takes a slot."""
        slot = draw.slot
        if slot >= self._taken.size:
            self._grow(max(_FEWEST, 2 * slot))
        self._taken[slot] = True
        self.temperature[slot] = draw.temperature
        self.top_k[slot] = min(max(draw.top_k, 0), vocab_size)
        self.top_p[slot] = draw.top_p
        self.min_p[slot] = draw.min_p
        self.seeds[slot] = draw.seed
        self.num_outputs[slot] = draw.num_outputs

    def free(self, slot: int) -> None:
        """Mark a slot as empty."""
        self._taken[slot] = False

    def places(self, slots: Sequence[int]) -> NDArray[np.int64]:
        """Return the slots as an index into the arrays. Raises KeyError if one of them is empty."""
        places = np.array(slots, dtype=np.int64)
        if places.size and (places.max() >= self._taken.size or not self._taken[places].all()):
            raise KeyError(f"some of the slots {list(slots)} are empty")
        return places

    def params(self, places: NDArray[np.int64], device: torch.device) -> RowParams:
        """Return the parameters of some slots on a device."""
        return RowParams(
            *(to_device(array[places], device) for array in (self.temperature, self.top_k, self.top_p, self.min_p))
        )

    def check_integrity(self) -> None:
        """Raise AssertionError if the arrays differ in length."""
        arrays = (self.temperature, self.top_k, self.top_p, self.min_p, self.seeds, self.num_outputs)
        assert all(a.size == self._taken.size for a in arrays), [a.size for a in arrays]

    def _grow(self, size: int) -> None:
        for name, array in list(vars(self).items()):
            grown = np.zeros(size, dtype=array.dtype)
            grown[: array.size] = array
            setattr(self, name, grown)
