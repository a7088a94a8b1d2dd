"""Changes to logits that a request asks for: penalties, biases, tokens forbidden until min_tokens.

Every function works on the rows of all requests at once: their (row, token) pairs are concatenated, so that the
number of tensor operations does not grow with the batch. Logits are float32 [R, V] and changed in place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plimsoll_runtime.execution.sampling.history import TokenCounts
from plimsoll_runtime.execution.sampling.state import SlotState


def adjust(logits: Tensor, states: Mapping[int, SlotState], num_outputs: NDArray[np.int64]) -> None:
    """Apply the penalties, then the bias, then the mask of `states` to their rows; num_outputs int64 [R]."""
    penalised = [(row, s, s.history) for row, s in states.items() if s.history is not None and s.history.tokens.size]
    if penalised:
        _penalise(logits, penalised)
    if biased := [(row, s) for row, s in states.items() if s.bias_ids.size]:
        rows, tokens = _pairs(logits, [(row, s.bias_ids) for row, s in biased])
        logits[rows, tokens] += torch.from_numpy(np.concatenate([s.bias for _, s in biased])).to(logits.device)
    unfinished = [(row, s.forbidden_ids) for row, s in states.items() if num_outputs[row] < s.params.min_tokens]
    if unfinished:
        logits[_pairs(logits, unfinished)] = -torch.inf


def _penalise(logits: Tensor, chosen: Sequence[tuple[int, SlotState, TokenCounts]]) -> None:
    """Penalties of what was seen: first for repetition, then for presence and frequency.

    Repetition divides positive and multiplies negative logits of tokens in prompt or output (Keskar et al., 2019).
    The others subtract a constant and a multiple of the count from tokens generated before (OpenAI's definition).
    """
    sizes = [history.tokens.size for _, _, history in chosen]
    wanted = np.array([_strengths(state) for _, state, _ in chosen], dtype=np.float32)
    repetition, presence, frequency = np.repeat(wanted, sizes, axis=0).T
    counts = np.concatenate([history.counts for _, _, history in chosen])
    factor = torch.from_numpy(np.ascontiguousarray(repetition)).to(logits.device)
    amount = torch.from_numpy(np.where(counts > 0, presence + frequency * counts, np.float32(0.0))).to(logits.device)
    pairs = _pairs(logits, [(row, history.tokens) for row, _, history in chosen])
    values = logits[pairs]
    logits[pairs] = torch.where(values > 0, values / factor, values * factor) - amount


def _strengths(state: SlotState) -> tuple[float, float, float]:
    params = state.params
    return params.repetition_penalty, params.presence_penalty, params.frequency_penalty


def _pairs(logits: Tensor, ids_by_row: Sequence[tuple[int, NDArray[np.int64]]]) -> tuple[Tensor, Tensor]:
    """Rows and tokens, pair by pair, as an index into the logits."""
    rows = np.repeat([row for row, _ in ids_by_row], [ids.size for _, ids in ids_by_row])
    tokens = np.concatenate([ids for _, ids in ids_by_row])
    return torch.from_numpy(rows).to(logits.device), torch.from_numpy(tokens).to(logits.device)
