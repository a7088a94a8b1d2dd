"""The sampler: persistent state for each slot, and one batched choice of tokens a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from plimsoll_kernels.row_maximum.op import row_maximum
from plimsoll_runtime.engine.plan import SequenceOutput, SlotInit, TokenLogprob
from plimsoll_runtime.execution.sampling.adjust import adjust
from plimsoll_runtime.execution.sampling.draw import DrawParams, draw
from plimsoll_runtime.execution.sampling.logprobs import token_logprobs
from plimsoll_runtime.execution.sampling.noise import uniforms
from plimsoll_runtime.execution.sampling.state import SlotState, new_slot_state

NOT_FINITE = "the model's logits are not finite (NaN or infinity): its weights or the chosen dtype are at fault"

COLDEST = 1e-4
"""Temperatures below this would overflow float32 when logits are divided by them, and are greedy anyway."""


@dataclass(frozen=True, slots=True)
class _Rows:
    """What is fixed while the same slots are sampled: built once, used for every step of a steady batch."""

    slots: tuple[int, ...]
    states: tuple[SlotState, ...]
    adjusted: bool
    drawn: tuple[int, ...]
    draw_params: DrawParams | None
    seeds: np.ndarray[tuple[int], np.dtype[np.int64]]
    reported: tuple[int, ...]


class Sampler:
    """Chooses one token for each row of logits by the parameters of the slot that the row belongs to."""

    def __init__(self, vocab_size: int, eos_token_ids: tuple[int, ...]) -> None:
        self._vocab_size = vocab_size
        self._eos = eos_token_ids
        self._states: dict[int, SlotState] = {}
        self._rows: _Rows | None = None

    def fill(self, init: SlotInit) -> None:
        """A sequence takes a slot."""
        self._states[init.slot] = new_slot_state(init, self._eos, self._vocab_size)
        self._rows = None

    def free(self, slot: int) -> None:
        """A slot is empty again."""
        del self._states[slot]
        self._rows = None

    def prompt_logprob_count(self, slot: int) -> int:
        """How many alternatives a prompt position of this slot reports."""
        return self._states[slot].params.prompt_logprobs or 0

    def sample(self, logits: Tensor, slots: Sequence[int]) -> list[SequenceOutput]:
        """Choose a token for each row (logits float32 [R, V], which may be changed) and record it.

        A row with a NaN or an infinite maximum gets an error instead of a token; the others are not affected.
        """
        rows = self._rows_for(tuple(slots), logits.device)
        raw = logits
        if rows.adjusted:
            raw = logits.clone() if rows.reported else logits
            adjust(logits, rows.states)
        best, tokens = row_maximum(logits)
        finite = torch.isfinite(best)
        if rows.draw_params is not None:
            self._draw_into(tokens, logits, finite, rows)
        reports = _report(raw, tokens, rows)
        outputs = []
        for i, (state, token, fine) in enumerate(zip(rows.states, tokens.tolist(), finite.tolist(), strict=True)):
            if not fine:
                outputs.append(SequenceOutput(error=NOT_FINITE))
                continue
            state.record(token)
            outputs.append(SequenceOutput(token_id=token, logprob=reports.get(i)))
        return outputs

    def _draw_into(self, tokens: Tensor, logits: Tensor, finite: Tensor, rows: _Rows) -> None:
        assert rows.draw_params is not None
        indices = np.array([rows.states[i].num_outputs for i in rows.drawn], dtype=np.int64)
        uniform = torch.from_numpy(uniforms(rows.seeds, indices)).to(logits.device)
        everyone = len(rows.drawn) == len(rows.slots)
        chosen = slice(None) if everyone else torch.tensor(rows.drawn, device=logits.device)
        wanted = torch.where(finite[chosen, None], logits[chosen], torch.zeros((), device=logits.device))
        tokens[chosen] = draw(wanted, rows.draw_params, uniform)

    def _rows_for(self, slots: tuple[int, ...], device: torch.device) -> _Rows:
        if self._rows is None or self._rows.slots != slots:
            self._rows = _describe(slots, tuple(self._states[s] for s in slots), self._vocab_size, device)
        return self._rows


def _describe(slots: tuple[int, ...], states: tuple[SlotState, ...], vocab: int, device: torch.device) -> _Rows:
    drawn = tuple(i for i, s in enumerate(states) if not s.params.greedy)
    return _Rows(
        slots=slots,
        states=states,
        adjusted=any(s.penalised or s.bias_ids.size or s.params.min_tokens for s in states),
        drawn=drawn,
        draw_params=_draw_params([states[i] for i in drawn], vocab, device) if drawn else None,
        seeds=np.array([states[i].seed for i in drawn], dtype=np.int64),
        reported=tuple(i for i, s in enumerate(states) if s.params.logprobs is not None),
    )


def _draw_params(states: Sequence[SlotState], vocab: int, device: torch.device) -> DrawParams:
    params = [s.params for s in states]
    top_k = [min(p.top_k, vocab) if p.top_k > 0 else vocab for p in params]
    limited = [k for k in top_k if k < vocab]
    return DrawParams(
        temperature=torch.tensor([max(p.temperature, COLDEST) for p in params], device=device),
        top_k=torch.tensor(top_k, device=device),
        top_p=torch.tensor([p.top_p for p in params], device=device),
        min_p=torch.tensor([p.min_p for p in params], device=device),
        filtered=bool(limited) or any(p.top_p < 1.0 for p in params),
        floored=any(p.min_p > 0.0 for p in params),
        max_top_k=max(limited, default=0),
    )


def _report(raw: Tensor, tokens: Tensor, rows: _Rows) -> dict[int, TokenLogprob]:
    """Log probabilities of the rows that asked for them, by row."""
    if not rows.reported:
        return {}
    chosen = torch.tensor(rows.reported, device=raw.device)
    top = [rows.states[i].params.logprobs or 0 for i in rows.reported]
    return dict(zip(rows.reported, token_logprobs(raw[chosen], tokens[chosen], top), strict=True))
