"""Changes of logits that a request specifies: penalties, biases, tokens forbidden until min_tokens.

Every function works on the rows of all requests at once: their (row, token) pairs are concatenated, so the number of
tensor operations does not grow with the batch. Logits are float32 [R, V] and changed in place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plimsoll_runtime.engine.protocol.plan import SlotInit
from plimsoll_runtime.engine.protocol.sampling_params import SamplingParams
from plimsoll_runtime.models.layers.device_copy import to_device


class TokenCounts:
    """The distinct tokens of a sequence, in the order of their first use, and how often each was generated: for
    penalties.
    """

    def __init__(self, prompt_ids: Iterable[int], output_ids: Iterable[int]) -> None:
        self._places = {token: place for place, token in enumerate(dict.fromkeys(prompt_ids))}
        self._tokens = np.fromiter(self._places, dtype=np.int64)
        self._counts = np.zeros(self._tokens.size, dtype=np.float32)
        for token in output_ids:
            self.add(token)

    def add(self, token: int) -> None:
        """Count a generated token."""
        place = self._places.setdefault(token, len(self._places))
        if place == self._tokens.size:
            spare = max(16, place)
            self._tokens = np.pad(self._tokens, (0, spare))
            self._counts = np.pad(self._counts, (0, spare))
        self._tokens[place] = token
        self._counts[place] += 1

    @property
    def tokens(self) -> NDArray[np.int64]:
        """The distinct tokens of the prompt and the output `[N]`."""
        return self._tokens[: len(self._places)]

    @property
    def counts(self) -> NDArray[np.float32]:
        """How often each token was generated `[N]`; 0 for tokens that are only in the prompt."""
        return self._counts[: len(self._places)]


@dataclass(frozen=True, slots=True)
class Adjustments:
    """Changes of a sequence's logits: penalties, bias, and the tokens that `min_tokens` forbids.

    History is kept only if a penalty reads it, the prompt only if the repetition penalty does.
    """

    params: SamplingParams
    forbidden_ids: NDArray[np.int64]
    bias_ids: NDArray[np.int64]
    bias: NDArray[np.float32]
    history: TokenCounts | None


def changes_logits(params: SamplingParams) -> bool:
    """Return whether a request has penalties, a bias, or tokens that `min_tokens` forbids."""
    return _penalises(params) or bool(params.logit_bias) or params.min_tokens > 0


def _penalises(params: SamplingParams) -> bool:
    unchanged = (params.repetition_penalty, params.presence_penalty, params.frequency_penalty) == (1.0, 0.0, 0.0)
    return not unchanged


def adjustments_of(init: SlotInit, eos_token_ids: tuple[int, ...], vocab_size: int) -> Adjustments | None:
    """Return the changes of a sequence, new or resumed, that takes a slot; None if its logits do not change, as most
    do.

    `min_tokens` forbids the stop tokens, and EOS unless it is ignored anyway. Ids outside the vocabulary have no logit
    and are left out.
    """
    params = init.context.params
    if not changes_logits(params):
        return None
    repeated, penalised = params.repetition_penalty != 1.0, _penalises(params)
    biased = {t: b for t, b in params.logit_bias.items() if t < vocab_size}
    ends = set(params.stop_token_ids) | (set() if params.ignore_eos else set(eos_token_ids))
    return Adjustments(
        params=params,
        forbidden_ids=np.array(sorted(t for t in ends if t < vocab_size), dtype=np.int64),
        bias_ids=np.fromiter(biased, np.int64),
        bias=np.fromiter(biased.values(), np.float32),
        history=TokenCounts(init.prompt_ids if repeated else (), init.output_ids) if penalised else None,
    )


def adjust(logits: Tensor, states: Mapping[int, Adjustments], num_outputs: NDArray[np.int64]) -> None:
    """Apply the changes of `states`, by row: penalties, then biases, then -inf for tokens forbidden until min_tokens.
    num_outputs: generated tokens of each row, int64 [R].
    """
    penalised = [(row, s, s.history) for row, s in states.items() if s.history is not None and s.history.tokens.size]
    if penalised:
        _penalise(logits, penalised)
    if biased := [(row, s) for row, s in states.items() if s.bias_ids.size]:
        rows, tokens = _pairs(logits, [(row, s.bias_ids) for row, s in biased])
        logits[rows, tokens] += to_device(np.concatenate([s.bias for _, s in biased]), logits.device)
    unfinished = [(row, s.forbidden_ids) for row, s in states.items() if num_outputs[row] < s.params.min_tokens]
    if unfinished:
        logits[_pairs(logits, unfinished)] = -torch.inf


def _penalise(logits: Tensor, chosen: Sequence[tuple[int, Adjustments, TokenCounts]]) -> None:
    """Apply the penalties of earlier tokens: first for repetition, then for presence and frequency.

    Repetition divides positive and multiplies negative logits of tokens in prompt or output (Keskar et al., 2019). The
    others subtract a constant and a multiple of the count from tokens generated before (OpenAI's definition).
    """
    sizes = [history.tokens.size for _, _, history in chosen]
    params = [state.params for _, state, _ in chosen]
    strengths = [(p.repetition_penalty, p.presence_penalty, p.frequency_penalty) for p in params]
    repetition, presence, frequency = np.repeat(np.array(strengths, dtype=np.float32), sizes, axis=0).T
    counts = np.concatenate([history.counts for _, _, history in chosen])
    factor = to_device(np.ascontiguousarray(repetition), logits.device)
    amount = to_device(np.where(counts > 0, presence + frequency * counts, np.float32(0.0)), logits.device)
    pairs = _pairs(logits, [(row, history.tokens) for row, _, history in chosen])
    values = logits[pairs]
    logits[pairs] = torch.where(values > 0, values / factor, values * factor) - amount


def _pairs(logits: Tensor, ids_by_row: Sequence[tuple[int, NDArray[np.int64]]]) -> tuple[Tensor, Tensor]:
    """Return rows and tokens, pair by pair, as an index into the logits."""
    rows = np.repeat([row for row, _ in ids_by_row], [ids.size for _, ids in ids_by_row])
    tokens = np.concatenate([ids for _, ids in ids_by_row])
    return to_device(rows, logits.device), to_device(tokens, logits.device)
