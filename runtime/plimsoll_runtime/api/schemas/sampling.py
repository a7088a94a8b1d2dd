"""The fields that chat and completions share, and their conversion to sampling parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from plimsoll_runtime.api.http.errors import ApiError
from plimsoll_runtime.api.schemas.constraints import ResponseFormat, StructuredOutputs, of_format, of_outputs
from plimsoll_runtime.engine.protocol.constraint import Constraint, ConstraintError
from plimsoll_runtime.engine.protocol.sampling_params import MAX_LOGPROBS, ParamsError, SamplingParams

COUNT_LIMIT = 2**31 - 1
MAX_CHOICES = 128
MAX_STOPS = 64

NOTHING: Mapping[str, float] = {}

Count = Annotated[int, Field(ge=0, le=COUNT_LIMIT)]
TokenId = Annotated[int, Field(ge=0, le=COUNT_LIMIT)]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]


STATE = "x-state"
"""Key in a field's schema: REFUSED or IGNORED; missing if the field is supported."""
REFUSED, IGNORED = "refused", "ignored"
EMPTY_VALUES: tuple[Any, ...] = (None, [], "", {})
EMPTY: dict[str, Any] = {
    "enum": list(EMPTY_VALUES),
    "description": "Not supported; it must be empty.",
    STATE: REFUSED,
}
WITHOUT_EFFECT = Field(json_schema_extra={STATE: IGNORED})
NoEffect = Annotated[Any, WITHOUT_EFFECT]
"""A field that is accepted and has no effect."""


ServiceTier = Annotated[
    Literal["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"] | None, WITHOUT_EFFECT
]
"""OpenAI's price tiers and queues. They have no effect here; `priority` is a field of ours."""


class Strict(BaseModel):
    """A part of a body that refuses unknown fields, because it constrains the output."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class Lenient(BaseModel):
    """A body, or a part of one, that ignores unknown fields, because clients send fields of other servers."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False)


class CacheOptions(Lenient):
    """OpenAI's options for prompt caching. This server caches every prefix, so only `prewarm` would have an effect."""

    mode: NoEffect = None
    ttl: NoEffect = None
    comparison_response_id: NoEffect = None
    prewarm: bool | None = None

    def check(self) -> None:
        """Raise ApiError for unsupported options."""
        if self.prewarm:
            raise invalid("prompt_cache_options.prewarm", "prefixes are cached when requests run; leave it out")


class StreamOptions(Lenient):
    """Whether a stream reports the usage: in its last event, or also the usage so far in each event."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: Annotated[bool | None, WITHOUT_EFFECT] = None


def _stops(value: Any) -> Any:
    """Return a string or a list of strings as a list. Raises ValueError."""
    if value is None:
        return []
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise ValueError("must be a string or a list of strings")
    if len(stops) > MAX_STOPS or not all(stops):
        raise ValueError(f"must have at most {MAX_STOPS} strings, none of them empty")
    return stops


_STOP = {"type": "string", "minLength": 1}
_STOPS = {"anyOf": [_STOP, {"type": "array", "items": _STOP, "maxItems": MAX_STOPS}, {"type": "null"}]}
Stops = Annotated[list[str], BeforeValidator(_stops), WithJsonSchema(_STOPS)]
"""Strings that end the output."""


def _kept(count: int | None) -> int | None:
    if count is not None and count != -1 and not 1 <= count <= COUNT_LIMIT:
        raise ValueError("must be a number of tokens, or -1 for as many as fit")
    return count


_KEPT = {"anyOf": [{"type": "integer", "minimum": 1, "maximum": COUNT_LIMIT}, {"const": -1}, {"type": "null"}]}


class ModelFields(Lenient):
    """The fields of every body that names a model."""

    model: str
    stream: bool | None = None


class GenerationFields(ModelFields):
    """The fields of every body in OpenAI's format that generates."""

    top_p: float | None = None
    seed: Seed | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    stream_options: StreamOptions | None = None
    user: Annotated[str | None, WITHOUT_EFFECT] = None
    service_tier: ServiceTier = None
    safety_identifier: Annotated[str | None, WITHOUT_EFFECT] = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: Annotated[str | None, WITHOUT_EFFECT] = None

    top_k: Annotated[int, Field(le=COUNT_LIMIT)] | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    ignore_eos: bool | None = None
    cache_salt: Annotated[str, Field(max_length=256)] | None = None
    priority: int | None = None
    deadline: float | None = None


class SamplingFields(GenerationFields):
    """OpenAI's fields, then ours. A field that is null or missing has the model's default, or else OpenAI's."""

    max_tokens: Count | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    temperature: float | None = None
    stop: Stops = []
    logit_bias: dict[TokenId, float] | None = None
    metadata: Annotated[dict[str, str] | None, WITHOUT_EFFECT] = None
    store: Annotated[bool | None, WITHOUT_EFFECT] = None
    response_format: ResponseFormat | None = None

    min_tokens: Count | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=MAX_STOPS)] | None = None
    include_stop_str_in_output: bool | None = None
    bad_words: Annotated[list[Annotated[str, Field(min_length=1)]], Field(max_length=MAX_STOPS)] | None = None
    truncate_prompt_tokens: Annotated[int | None, AfterValidator(_kept), WithJsonSchema(_KEPT)] = None
    return_token_ids: bool | None = None
    prompt_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    skip_special_tokens: bool | None = None
    add_special_tokens: bool | None = None
    structured_outputs: StructuredOutputs | None = None

    @property
    def choices(self) -> int:
        """How many choices each prompt gets."""
        return self.n or 1

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with the usage."""
        return bool(self.stream_options and self.stream_options.include_usage)

    def check_stream_options(self) -> None:
        """Raise ApiError for stream options without a stream."""
        if self.stream_options is not None and not self.stream:
            raise ApiError(
                "'stream_options' is only allowed with 'stream': true.",
                param="stream_options",
                code="invalid_value",
            )

    @property
    def constraint_field(self) -> str:
        """Name of the field that constrains the output; `response_format` if none does."""
        if self.structured_outputs is not None:
            return "structured_outputs"
        return "bad_words" if self.response_format is None and self.bad_words else "response_format"

    def constraint(self) -> Constraint | None:
        """Return the constraint of the output. Raises ApiError that names the field."""
        given = self.response_format, self.structured_outputs
        try:
            found = [of_format(given[0]) if given[0] else None, of_outputs(given[1]) if given[1] else None]
        except ValueError as error:
            raise invalid(self.constraint_field, str(error)) from error
        if None not in found:
            raise invalid("structured_outputs", "'response_format' also constrains the output; leave one out")
        return self._without_bad_words(found[0] or found[1])

    def _without_bad_words(self, found: Constraint | None) -> Constraint | None:
        if not self.bad_words:
            return found
        if found is not None:
            raise invalid(
                "bad_words", "another field constrains the output, and both cannot be enforced; leave one out"
            )
        try:
            return Constraint.without(self.bad_words)
        except ConstraintError as error:
            raise invalid("bad_words", str(error)) from error

    def sampling_params(
        self,
        *,
        max_tokens: int | None,
        logprobs: int | None,
        prompt_logprobs: int | None,
        stop: tuple[str, ...] = (),
        constraint: Constraint | None = None,
        recommended: Mapping[str, float] = NOTHING,
    ) -> SamplingParams:
        """Return the engine's parameters. `stop` is added to the request's own stop strings, `constraint` replaces
        its own constraint, and `recommended` has values for fields that it leaves out. Raises ApiError that names
        the field."""
        given = {name: value for name in _SAME_NAME if (value := getattr(self, name)) is not None}
        try:
            return SamplingParams(
                max_tokens=max_tokens,
                logprobs=logprobs,
                prompt_logprobs=prompt_logprobs,
                stop=tuple(dict.fromkeys((*self.stop, *stop))),
                stop_token_ids=tuple(self.stop_token_ids or ()),
                constraint=constraint or self.constraint(),
                **{**recommended, **given},
            )
        except ParamsError as error:
            raise invalid(error.field, str(error)) from error


_NAMED = ("max_tokens", "prompt_logprobs", "stop", "stop_token_ids")
_SAME_NAME = tuple(
    name for name in SamplingParams.__struct_fields__ if name in SamplingFields.model_fields and name not in _NAMED
)
"""Fields of a body that are sampling parameters of the same name; `_NAMED` need a conversion or differ by endpoint."""


def invalid(param: str, reason: str) -> ApiError:
    """Return the error for an invalid field of a body."""
    return ApiError(f"Invalid value for '{param}': {reason}.", param=param, code="invalid_value")
