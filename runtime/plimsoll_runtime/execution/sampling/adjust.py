"""Changes to logits that a request asks for: penalties, biases, tokens forbidden until min_tokens.

Every function works on the rows of all requests at once: their (row, token) pairs are concatenated, so that the
number of tensor operations does not grow with the batch. Logits are float32 [R, V] and changed in place.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plimsoll_runtime.execution.sampling.state import SlotState

_Pairs = tuple[NDArray[np.int64], NDArray[np.int64]]


def adjust(logits: Tensor, states: Sequence[SlotState]) -> None:
    """Apply the penalties, then the bias, then the mask of `states[i]` to row i."""
    penalised = [i for i, s in enumerate(states) if s.penalised]
    if penalised:
        _repetition(logits, states, penalised)
        _presence_and_frequency(logits, states, penalised)
    if biased := [i for i, s in enumerate(states) if s.bias_ids.size]:
        _bias(logits, states, biased)
    if unfinished := [i for i, s in enumerate(states) if s.must_go_on]:
        rows, tokens = _pairs([(i, states[i].forbidden_ids) for i in unfinished])
        logits[_on(logits, rows), _on(logits, tokens)] = -torch.inf


def _repetition(logits: Tensor, states: Sequence[SlotState], chosen: Sequence[int]) -> None:
    """Divide positive and multiply negative logits of tokens seen in prompt or output (Keskar et al., 2019)."""
    seen = []
    factors = []
    for i in chosen:
        if states[i].params.repetition_penalty != 1.0:
            ids = np.union1d(states[i].prompt_ids, np.fromiter(states[i].counts, np.int64))
            seen.append((i, ids))
            factors.append(np.full(ids.size, states[i].params.repetition_penalty, dtype=np.float32))
    if not seen:
        return
    rows, tokens = (_on(logits, a) for a in _pairs(seen))
    factor = torch.from_numpy(np.concatenate(factors)).to(logits.device)
    values = logits[rows, tokens]
    logits[rows, tokens] = torch.where(values > 0, values / factor, values * factor)


def _presence_and_frequency(logits: Tensor, states: Sequence[SlotState], chosen: Sequence[int]) -> None:
    """Subtract a constant and a multiple of the count from tokens generated before (OpenAI's definition)."""
    generated = []
    amounts = []
    for i in chosen:
        counts, params = states[i].counts, states[i].params
        generated.append((i, np.fromiter(counts, np.int64)))
        times = np.fromiter(counts.values(), np.float32)
        amounts.append(params.presence_penalty + params.frequency_penalty * times)
    rows, tokens = (_on(logits, a) for a in _pairs(generated))
    amount = torch.from_numpy(np.concatenate(amounts)).to(logits)
    logits[rows, tokens] -= amount


def _bias(logits: Tensor, states: Sequence[SlotState], chosen: Sequence[int]) -> None:
    rows, tokens = (_on(logits, a) for a in _pairs([(i, states[i].bias_ids) for i in chosen]))
    logits[rows, tokens] += torch.from_numpy(np.concatenate([states[i].bias for i in chosen])).to(logits.device)


def _pairs(ids_by_row: Sequence[tuple[int, NDArray[np.int64]]]) -> _Pairs:
    rows = np.concatenate([np.full(ids.size, row, dtype=np.int64) for row, ids in ids_by_row])
    return rows, np.concatenate([ids for _, ids in ids_by_row])


def _on(logits: Tensor, indices: NDArray[np.int64]) -> Tensor:
    return torch.from_numpy(indices).to(logits.device)
