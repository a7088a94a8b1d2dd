"""The sampler: persistent state for each slot, and one batched choice of tokens a step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plimsoll_kernels.sampling.op import sample
from plimsoll_kernels.sampling.params import RowParams
from plimsoll_runtime.engine.plan import SequenceOutput, SlotInit, TokenLogprob
from plimsoll_runtime.execution.sampling.adjust import adjust
from plimsoll_runtime.execution.sampling.logprobs import token_logprobs
from plimsoll_runtime.execution.sampling.noise import uniforms
from plimsoll_runtime.execution.sampling.slots import SlotArrays
from plimsoll_runtime.execution.sampling.state import SlotState, new_slot_state

NOT_FINITE = "the model's logits are not finite (NaN or infinity): its weights or the chosen dtype are at fault"

_FAILED = -1


@dataclass(frozen=True, slots=True)
class _Rows:
    """What is fixed while the same slots are sampled: picked once, used for every step of a steady batch.

    `places` are the rows' slots. `undrawn` stands for the uniform numbers where no row draws. `adjusted` are the states
    of the rows whose logits change, by row; where there are none and no row draws, nobody asks how many tokens a row
    has, and they are not `counted`. `reported` are the rows that want log probabilities, on the logits' device,
    and `alternatives` how many each of them wants.
    """

    slots: tuple[int, ...]
    places: NDArray[np.int64]
    params: RowParams
    undrawn: Tensor | None
    adjusted: Mapping[int, SlotState]
    counted: bool
    reported: Tensor | None
    alternatives: tuple[int, ...]


class Sampler:
    """Chooses one token for each row of logits by the parameters of the slot that the row belongs to."""

    def __init__(self, vocab_size: int, eos_token_ids: tuple[int, ...]) -> None:
        self._vocab_size = vocab_size
        self._eos = eos_token_ids
        self._arrays = SlotArrays()
        self._states: dict[int, SlotState] = {}
        self._reports: dict[int, int] = {}
        self._prompt_reports: dict[int, int] = {}
        self._rows: _Rows | None = None

    def fill(self, init: SlotInit) -> None:
        """A sequence takes a slot."""
        self._arrays.fill(init, self._vocab_size)
        state = new_slot_state(init, self._eos, self._vocab_size)
        if state is not None:
            self._states[init.slot] = state
        if init.params.logprobs is not None:
            self._reports[init.slot] = init.params.logprobs
        if init.params.prompt_logprobs is not None:
            self._prompt_reports[init.slot] = init.params.prompt_logprobs
        self._rows = None

    def free(self, slot: int) -> None:
        """A slot is empty again."""
        self._arrays.free(slot)
        for kept in (self._states, self._reports, self._prompt_reports):
            kept.pop(slot, None)
        self._rows = None

    def prompt_logprob_count(self, slot: int) -> int:
        """How many alternatives a prompt position of this slot reports."""
        return self._prompt_reports.get(slot, 0)

    def sample(self, logits: Tensor, slots: Sequence[int]) -> list[SequenceOutput]:
        """Choose a token for each row (logits float32 [R, V], which may be changed) and record it.

        A row with a NaN or an infinite maximum gets an error instead of a token; the others are not affected.
        """
        rows = self._rows_for(tuple(slots), logits.device)
        raw = logits
        if rows.adjusted:
            raw = logits.clone() if rows.reported is not None else logits
            adjust(logits, rows.adjusted, self._arrays.num_outputs[rows.places])
        best, chosen = sample(logits, rows.params, self._uniforms(rows, logits.device))
        reports = None if rows.reported is None else _report(raw, chosen, rows.reported, rows.alternatives)
        return self._record(rows, _on_host(best, chosen), reports)

    def _record(
        self, rows: _Rows, tokens: list[int], reports: Mapping[int, TokenLogprob] | None
    ) -> list[SequenceOutput]:
        """Take note of the chosen tokens, and wrap them up."""
        if rows.counted:
            self._arrays.num_outputs[rows.places] += 1
        for row, state in rows.adjusted.items():
            if state.history is not None and tokens[row] != _FAILED:
                state.history.add(tokens[row])
        if reports is None and _FAILED not in tokens:
            return [SequenceOutput(token) for token in tokens]
        reports = reports or {}
        return [
            SequenceOutput(error=NOT_FINITE) if token == _FAILED else SequenceOutput(token, reports.get(row))
            for row, token in enumerate(tokens)
        ]

    def _uniforms(self, rows: _Rows, device: torch.device) -> Tensor:
        """A number in [0, 1) for each row's next token, float64 [R]; nobody reads them where nothing is drawn."""
        if rows.undrawn is not None:
            return rows.undrawn
        arrays = self._arrays
        return torch.from_numpy(uniforms(arrays.seeds[rows.places], arrays.num_outputs[rows.places])).to(device)

    def _rows_for(self, slots: tuple[int, ...], device: torch.device) -> _Rows:
        if self._rows is None or self._rows.slots != slots:
            self._rows = self._pick(slots, device)
        return self._rows

    def _pick(self, slots: tuple[int, ...], device: torch.device) -> _Rows:
        places = self._arrays.places(slots)
        reported = [row for row, slot in enumerate(slots) if slot in self._reports] if self._reports else []
        states = self._states
        adjusted = {row: states[slot] for row, slot in enumerate(slots) if slot in states} if states else {}
        draws = bool(self._arrays.temperature[places].any())
        return _Rows(
            slots=slots,
            places=places,
            params=self._arrays.params(places, device),
            undrawn=None if draws else torch.zeros(len(slots), dtype=torch.float64, device=device),
            adjusted=adjusted,
            counted=draws or bool(adjusted),
            reported=torch.tensor(reported, device=device) if reported else None,
            alternatives=tuple(self._reports[slots[row]] for row in reported),
        )


def _on_host(best: Tensor, chosen: Tensor) -> list[int]:
    """The chosen tokens, or _FAILED where a row's largest logit is not finite."""
    if best.is_cuda:
        return list(torch.where(best.isfinite(), chosen, _FAILED).tolist())
    # Each call into torch or numpy is a part of a small step that can be seen; a sum of float32s is finite if all are.
    tokens: list[int] = chosen.tolist()
    largest: list[float] = best.tolist()
    if math.isfinite(sum(largest)):
        return tokens
    return [token if math.isfinite(value) else _FAILED for token, value in zip(tokens, largest, strict=True)]


def _report(raw: Tensor, tokens: Tensor, rows: Tensor, alternatives: Sequence[int]) -> dict[int, TokenLogprob]:
    """Log probabilities of the rows that asked for them, by row."""
    everyone = len(alternatives) == raw.shape[0]
    found = (
        token_logprobs(raw, tokens, alternatives) if everyone else token_logprobs(raw[rows], tokens[rows], alternatives)
    )
    return dict(zip(rows.tolist(), found, strict=True))
