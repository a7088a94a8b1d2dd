"""Parameters of a request's sampling, its reasoning budget included."""

from __future__ import annotations

import math
from random import SystemRandom
from typing import NamedTuple

import msgspec

from plimsoll_runtime.engine.protocol.constraint import Constraint


class ReasoningMarkers(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The markers that begin and end reasoning, as bytes and as tokens of a vocabulary.

    Reasoning is at the start of an output, after white space at most, or anywhere with `anywhere`. With `open` the
    prompt ends inside of reasoning.

    - `budget`: most reasoning tokens of an output, without markers; None: unlimited. When it is used up, `closing` is
      forced: for each of the next positions, the tokens that are allowed there.
    - `implied`: texts that end reasoning without `end`, and belong to the part after it. `barred`: tokens that are
      forbidden inside reasoning if a constrained output follows, so that it ends with `end`.
    - `answer`: texts before the part to which the constraint applies, in order. Empty: it applies to the whole output.
      None: it applies to everything outside of reasoning.
    - `steer`: a marker and tokens. Before a constrained output, one of these tokens must follow the marker, so that the
      model writes no unconstrained text.
    - `opening`: the single token that spells `begin`, which may come before a constrained output. None: several tokens
      spell it, and a constrained output starts no reasoning.
    - `gap`: tokens that are forced between reasoning and a constrained output.
    """

    begin: bytes
    end: bytes
    open: bool = False
    anywhere: bool = False
    budget: int | None = None
    closing: tuple[tuple[int, ...], ...] = ()
    implied: tuple[bytes, ...] = ()
    barred: tuple[int, ...] = ()
    answer: tuple[bytes, ...] | None = None
    steer: tuple[bytes, tuple[int, ...]] | None = None
    opening: int | None = None
    gap: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Raises ValueError for empty markers, and for a budget that cannot be enforced."""
        if not self.begin or not self.end or not all((*self.implied, *(self.answer or ()))):
            raise ValueError("reasoning markers must not be empty")
        if self.budget is not None and (self.budget < 0 or not all(self.closing) or not self.closing):
            raise ValueError("a reasoning budget must be at least 0 and needs closing tokens")


SEED_LIMIT = 2**63
MAX_LOGPROBS = 20

SMALLEST = 2.0**-126
"""The smallest normal float32, the type of logits: smaller values would become 0."""
PRIORITY_LIMIT = 100
DEADLINE_LIMIT = 3600.0
"""Seconds. Both limits bound how long other requests can delay a request."""


class Range(NamedTuple):
    """The range of a number. Both ends are included, except the lower one with `above`."""

    low: float
    high: float
    above: bool = False


RANGES = {
    "temperature": Range(0.0, 100.0),
    "top_p": Range(0.0, 1.0),
    "min_p": Range(0.0, 1.0),
    "presence_penalty": Range(-2.0, 2.0),
    "frequency_penalty": Range(-2.0, 2.0),
    # Logits are divided and multiplied by it: within this range no finite logit of a model becomes infinite.
    "repetition_penalty": Range(0.01, 100.0),
    "logit_bias": Range(-100.0, 100.0),
    "deadline": Range(0.0, DEADLINE_LIMIT, above=True),
}
_random = SystemRandom()
_COMPUTED = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")


class ParamsError(ValueError):
    """A sampling parameter is out of its range; `field` names it."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How to sample tokens, when to stop, and what to report about them.

    Raises `ParamsError` (a ValueError) when built with a value outside its range.

    - `max_tokens`: None means up to the model's context.
    - `temperature` 0 is greedy, and so is `top_p` 0. `top_k` 0 or -1, `top_p` 1 and `min_p` 0 filter nothing. The
      filters apply to the distribution after penalties, bias and temperature, in the order top-k, top-p, min-p.
    - `seed` makes a request's random draws repeatable, whatever else is in its batch; None draws new ones. Tokens
      repeat as far as logits do: with the attention backend "cpu" to the last bit. With others (torch, Triton, cuBLAS)
      the last bits of a product depend on the batch size, so that one token in many may differ.
    - `logprobs`: None reports none, 0 those of the sampled tokens, k also the k most likely tokens; likewise
      `prompt_logprobs`. Log probabilities are those of the model's own distribution (before penalties, bias,
      temperature, filters).
    - A temperature, filter, penalty or bias other than 0 that is too small for a float32 is refused.
    - `priority`: lower is admitted first, with the policy "priority" only (with others any value except 0 is refused).
    - `deadline`: seconds from the request's arrival to its first token. A request without a token by then fails; with
      one it continues. None: no deadline. The policy "deadline" also orders by it.
    - `constraint`: the language of the output. The output ends with an EOS token as soon as nothing may follow. Not
      together with `min_tokens` and `ignore_eos`, which continue an output.
    - `thought`: how the output marks reasoning, and its budget. A constraint applies to the output after it.
    - `stop` strings end the text before themselves unless `include_stop_str_in_output`. They may contain special
      tokens.
    """

    max_tokens: int | None = 16
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True
    priority: int = 0
    deadline: float | None = None
    constraint: Constraint | None = None
    thought: ReasoningMarkers | None = None

    def __post_init__(self) -> None:
        self._check_lengths()
        self._check_distribution()
        self._check_reports()
        self._check_urgency()
        self._check_constraint()

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is taken, without a random draw."""
        return 0.0 in (self.temperature, self.top_p)

    def output_seed(self, number: int = 0) -> int:
        """Return the seed of output `number`: `seed` + `number`, or a random one if `seed` is None."""
        if self.seed is None:
            return _random.randrange(SEED_LIMIT)
        seed = self.seed + number
        return seed if seed < SEED_LIMIT else seed - 2 * SEED_LIMIT

    def _check_lengths(self) -> None:
        if self.max_tokens is not None and self.max_tokens < 1:
            raise ParamsError("max_tokens", f"must be at least 1, not {self.max_tokens}")
        if self.min_tokens < 0:
            raise ParamsError("min_tokens", f"must be at least 0, not {self.min_tokens}")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ParamsError("min_tokens", f"{self.min_tokens} exceeds max_tokens {self.max_tokens}")
        if any(not text for text in self.stop):
            raise ParamsError("stop", "a stop string must not be empty")
        if any(token < 0 for token in self.stop_token_ids):
            raise ParamsError("stop_token_ids", f"token id {min(self.stop_token_ids)} is negative")

    def _check_distribution(self) -> None:
        for field in _COMPUTED:
            _in_range(field, getattr(self, field))
            _in_float32(field, getattr(self, field))
        if self.top_k < -1:
            raise ParamsError("top_k", f"must be -1 or 0 (off) or positive, not {self.top_k}")
        if self.seed is not None and not -SEED_LIMIT <= self.seed < SEED_LIMIT:
            raise ParamsError("seed", "must fit in 64 bits")
        for token, bias in self.logit_bias.items():
            if token < 0:
                raise ParamsError("logit_bias", f"token id {token} is negative")
            _in_range("logit_bias", bias)
            _in_float32("logit_bias", bias)

    def _check_reports(self) -> None:
        for field, count in (("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)):
            if count is not None and not 0 <= count <= MAX_LOGPROBS:
                raise ParamsError(field, f"must be between 0 and {MAX_LOGPROBS}, not {count}")

    def _check_constraint(self) -> None:
        if self.constraint is None:
            return
        for field, wanted in (("min_tokens", self.min_tokens > 0), ("ignore_eos", self.ignore_eos)):
            if wanted:
                raise ParamsError(field, "cannot be combined with a constraint, which ends the output; leave it out")

    def _check_urgency(self) -> None:
        if not -PRIORITY_LIMIT <= self.priority <= PRIORITY_LIMIT:
            raise ParamsError(
                "priority", f"must be from -{PRIORITY_LIMIT} (first) to {PRIORITY_LIMIT} (last), not {self.priority}"
            )
        if self.deadline is not None:
            _in_range("deadline", self.deadline)


def _in_range(field: str, value: float) -> None:
    low, high, above = RANGES[field]
    inside = (low < value if above else low <= value) and value <= high
    if not inside or math.isnan(value):
        bracket = "more than" if above else "at least"
        raise ParamsError(field, f"must be {bracket} {low:g} and at most {high:g}, not {value:g}")


def _in_float32(field: str, value: float) -> None:
    if 0.0 < abs(value) < SMALLEST:
        raise ParamsError(field, f"must be 0 or at least {SMALLEST:.4g} in size, not {value:g}: too small for float32")
