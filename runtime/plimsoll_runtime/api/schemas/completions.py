"""The request of POST /v1/completions."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema

from plimsoll_runtime.api.schemas.sampling import COUNT_LIMIT, EMPTY, MAX_CHOICES, SamplingFields, invalid
from plimsoll_runtime.engine.protocol.sampling_params import MAX_LOGPROBS

DEFAULT_MAX_TOKENS = 16
MAX_PROMPTS = 2048

Prompt = str | list[int]
_TOKENS = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": COUNT_LIMIT}}
_TEXT_OR_TOKENS = {"anyOf": [{"type": "string"}, _TOKENS]}
PROMPTS = {
    "anyOf": [
        {"type": "string"},
        {**_TOKENS, "minItems": 1},
        {"type": "array", "items": _TEXT_OR_TOKENS, "minItems": 1, "maxItems": MAX_PROMPTS},
    ],
    "description": "A text, a list of token ids, or a list of both.",
}


def prompts(value: Any) -> list[Prompt]:
    """Return a text, token ids, or a list of either, as a list. Raises ValueError."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not value:
        raise ValueError("must be a text, a list of texts, a list of token ids, or a list of such lists")
    if _is_token(value[0]):
        return [_tokens(value)]
    if len(value) > MAX_PROMPTS:
        raise ValueError(f"must have at most {MAX_PROMPTS} prompts, not {len(value)}")
    return [prompt if isinstance(prompt, str) else _tokens(prompt) for prompt in value]


def _tokens(value: Any) -> list[int]:
    if not isinstance(value, list) or not _are_tokens(value):
        raise ValueError("must not mix texts and token ids; token ids are integers from 0")
    return value


def _is_token(value: Any) -> bool:
    return _are_tokens([value])


def _are_tokens(values: list[Any]) -> bool:
    return not values or (set(map(type, values)) == {int} and min(values) >= 0 and max(values) <= COUNT_LIMIT)


class CompletionRequest(SamplingFields):
    """OpenAI's legacy completion request, with our additions."""

    prompt: Annotated[Any, BeforeValidator(prompts), WithJsonSchema(PROMPTS)]
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    best_of: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    suffix: Annotated[str | None, WithJsonSchema(EMPTY)] = None

    def check(self) -> None:
        """Raise ApiError for unsupported or contradictory fields."""
        self.check_stream_options()
        if self.candidates < self.choices:
            raise invalid("best_of", f"it must be at least 'n' ({self.choices})")
        if self.ranks and self.stream:
            raise invalid("best_of", "choices are ranked after their end and cannot be streamed; leave out 'stream'")
        if self.suffix:
            raise invalid("suffix", "it is not supported; leave it out")

    @property
    def candidates(self) -> int:
        """How many choices are generated for each prompt; the best of them are returned."""
        return self.choices if self.best_of is None else self.best_of

    @property
    def ranks(self) -> bool:
        """Whether only the best of the generated choices are returned."""
        return self.candidates > self.choices

    @property
    def token_limit(self) -> int:
        """Most output tokens of a choice; 0 only scores the prompt."""
        return DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens

    @property
    def adds_special_tokens(self) -> bool:
        """Whether texts get the special tokens that the tokenizer adds around a text."""
        return self.add_special_tokens is not False

    @property
    def scores_only(self) -> bool:
        """Whether no output is wanted (max_tokens 0): the engine still generates one token, which is dropped."""
        return self.max_tokens == 0
