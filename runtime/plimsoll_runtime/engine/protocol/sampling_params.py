"""How the tokens of a request are sampled, its reasoning budget included."""

from __future__ import annotations

import math
from random import SystemRandom
from typing import NamedTuple

import msgspec

from plimsoll_runtime.engine.protocol.constraint import Constraint


class ReasoningMarkers(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What begins and ends a thought, as a vocabulary's tokens spell it.

    A thought stands at the beginning of an answer, after white space at most, or where `anywhere` wherever it begins.
    With `open` the prompt ends within one.

    - `budget`: how many tokens an answer's thoughts may have, markers not counted; None: as many as come. When they are
      used up the next tokens are `closing`: each is one of several.
    - `implied`: what ends a thought as well, being part of what follows. Within a thought that a constraint follows the
      tokens `barred` are forbidden, so that its own end comes first.
    - `answer`: what stands before the part that the answer's constraint holds for, one after the other. Empty: it holds
      for all of the answer. None: for what no thought is.
    - `steer`: before a constrained answer, these tokens alone may follow some bytes, so that nothing is said there.
    - `opening`: the token that alone spells `begin`, which may come before a constrained answer; None where several do,
      so that a constrained answer begins with no thought of its own.
    - `gap`: the tokens between a thought and a constrained answer.
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
        """Raises ValueError for markers of no bytes, and for a budget that could not be kept to."""
        if not self.begin or not self.end or not all((*self.implied, *(self.answer or ()))):
            raise ValueError("the markers of a thought have one byte at least")
        if self.budget is not None and (self.budget < 0 or not all(self.closing) or not self.closing):
            raise ValueError("a budget is not negative, and needs tokens that end a thought")


SEED_LIMIT = 2**63
MAX_LOGPROBS = 20

SMALLEST = 2.0**-126
"""The smallest normal float32, in which logits are computed: what lies nearer to 0 would vanish there."""
PRIORITY_LIMIT = 100
DEADLINE_LIMIT = 3600.0
"""Seconds. Both limits bound how long a request may be put off for others."""


class Range(NamedTuple):
    """What a number may be, both ends included unless it must be `above` the lower one."""

    low: float
    high: float
    above: bool = False


RANGES = {
    "temperature": Range(0.0, 100.0),
    "top_p": Range(0.0, 1.0),
    "min_p": Range(0.0, 1.0),
    "presence_penalty": Range(-2.0, 2.0),
    "frequency_penalty": Range(-2.0, 2.0),
    # Logits are divided and multiplied by it: within these no finite logit of a model becomes infinite.
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
    """How to choose tokens, when to stop, and what to report of them.

    Raises `ParamsError` (a ValueError) when built with a value outside its range.

    - `max_tokens`: None means up to the model's context.
    - `temperature` 0 is greedy, and so is `top_p` 0. `top_k` 0 or -1 and `top_p` 1 and `min_p` 0 filter nothing. The
      filters apply to the distribution after penalties, bias and temperature, in the order top-k, top-p, min-p.
    - `seed` makes a request's random draws repeatable whatever else is in its batch; None draws fresh ones. Tokens
      repeat as far as logits do: with the attention backend "cpu" to the last bit, elsewhere (torch, Triton, cuBLAS)
      a product's last bits change with the size of the batch, so that one token in many may come out differently.
    - `logprobs` None reports none, 0 the chosen token's, k also the k most likely; likewise `prompt_logprobs`.
      Log probabilities are those of the model's own distribution (before penalties, bias, temperature, filters).
    - A temperature, filter, penalty or bias other than 0 that is too small for a float32 is refused.
    - `priority`: lower is served earlier, under the policy "priority" only (elsewhere any but 0 is refused).
    - `deadline`: seconds from the request's arrival within which its first token is wanted. A request that has none by
      then fails; one that has goes on to its end. None: whenever. The policy "deadline" also orders by it.
    - `constraint`: the language that the answer is taken from; it ends with one of the model's ends as soon as nothing
      may follow. Not together with `min_tokens` and `ignore_eos`, which want it to go on.
    - `thought`: where the answer thinks, and for how long it may. A constraint holds for what it says afterwards.
    - `stop` strings end the text before themselves unless `include_stop_str_in_output`. They may hold special tokens.
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
        """Whether the most likely token is taken, with no draw."""
        return 0.0 in (self.temperature, self.top_p)

    def output_seed(self, number: int = 0) -> int:
        """The seed of output `number` of a request: the successor of `seed` by so many, or a random one without it."""
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
            raise ParamsError("min_tokens", f"{self.min_tokens} is more than max_tokens {self.max_tokens}")
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
                raise ParamsError(field, "cannot be kept where the answer ends by its grammar: leave it out")

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
