"""Requests and responses of models that compute vectors, labels or scores.

Embeddings have OpenAI's format; scores and labels have vLLM's, ranks Jina's, which Cohere's clients read as well.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from plimsoll_runtime.api.schemas.completions import MAX_PROMPTS, PROMPTS, Prompt, prompts
from plimsoll_runtime.api.schemas.sampling import COUNT_LIMIT, REFUSED, STATE, WITHOUT_EFFECT, ModelFields, invalid
from plimsoll_runtime.engine.protocol.sampling_params import ParamsError, SamplingParams

LONGEST_NAME = 256
_TEXT = {"type": "string"}
_PAIR = {"type": "array", "items": _TEXT, "minItems": 2, "maxItems": 2}
_TEXTS = {"anyOf": [_TEXT, {"type": "array", "items": _TEXT, "minItems": 1, "maxItems": MAX_PROMPTS}]}
_ONLY_WHOLE = {"enum": [False, None], STATE: REFUSED}
_DOCUMENT = {"anyOf": [_TEXT, {"type": "object", "properties": {"text": _TEXT}, "required": ["text"]}]}
_DOCUMENTS = {"type": "array", "items": _DOCUMENT, "minItems": 1, "maxItems": MAX_PROMPTS}
_INPUTS = {
    "anyOf": [_TEXT, {"type": "array", "items": {"anyOf": [_TEXT, _PAIR]}, "minItems": 1, "maxItems": MAX_PROMPTS}],
    "description": "A text, or a list of texts and of pairs of texts.",
}

Cut = Annotated[int, Field(ge=-1, le=COUNT_LIMIT)]
Pair = tuple[str, str]


def _texts(value: Any) -> list[str]:
    """Return a text or a list of texts as a list. Raises ValueError."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise ValueError("must be a text or a list of texts")
    return _bounded(texts)


def _documents(value: Any) -> list[str]:
    """Return texts, or objects with a text, as texts. Raises ValueError."""
    if not isinstance(value, list) or not value:
        raise ValueError("must be a list of texts, or of objects with a text")
    return _texts([each.get("text") if isinstance(each, dict) else each for each in value])


def _inputs(value: Any) -> list[str | Pair]:
    """Return a text, or a list of texts and pairs, as a list. Raises ValueError."""
    inputs = [value] if isinstance(value, str) else value
    if not isinstance(inputs, list) or not inputs:
        raise ValueError("must be a text, or a list of texts and of pairs of texts")
    return [each if isinstance(each, str) else _pair(each) for each in _bounded(inputs)]


def _pair(value: Any) -> Pair:
    match value:
        case [str(one), str(other)]:
            return one, other
    raise ValueError("must be a text, or a list of texts and of pairs of texts")


def _bounded(values: list[Any]) -> list[Any]:
    if len(values) > MAX_PROMPTS:
        raise ValueError(f"must have at most {MAX_PROMPTS} entries, not {len(values)}")
    return values


def _whole(stream: bool | None) -> bool | None:
    if stream:
        raise ValueError("this endpoint does not stream; leave it out")
    return stream


Texts = Annotated[list[str], BeforeValidator(_texts), WithJsonSchema(_TEXTS)]


class PoolingFields(ModelFields):
    """`truncate_prompt_tokens` cuts prompts to that many tokens, -1 to the model's maximum."""

    stream: Annotated[bool | None, AfterValidator(_whole), WithJsonSchema(_ONLY_WHOLE)] = None
    user: Annotated[str | None, WITHOUT_EFFECT] = None
    truncate_prompt_tokens: Cut | None = None
    priority: int | None = None
    deadline: float | None = None

    def params(self) -> SamplingParams:
        """Return the engine's parameters: priority, deadline, and a single step. Raises ApiError."""
        try:
            return SamplingParams(max_tokens=1, temperature=0.0, priority=self.priority or 0, deadline=self.deadline)
        except ParamsError as error:
            raise invalid(error.field, str(error)) from error


class EmbeddingRequest(PoolingFields):
    """OpenAI's request for embeddings; `prompt_name` is one of the model's prompts, put before each text."""

    input: Annotated[list[Prompt], BeforeValidator(prompts), WithJsonSchema(PROMPTS)]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1, le=COUNT_LIMIT)] | None = None
    prompt_name: Annotated[str, Field(max_length=LONGEST_NAME)] | None = None


class CompareFields(PoolingFields):
    """`instruction` says how to judge pairs, for models that take one. Scores are on the model's scale: a sigmoid (0 to
    1), or unchanged. If `use_activation` is false, they are raw."""

    instruction: str | None = None
    use_activation: bool | None = None


class ScoreRequest(CompareFields):
    """Texts to compare: each of `text_1` with the one of `text_2` at the same index; one text alone in `text_1` with
    all of `text_2`."""

    text_1: Texts
    text_2: Texts


class RerankRequest(CompareFields):
    """Documents to rank by how well they match a query."""

    query: str
    documents: Annotated[list[str], BeforeValidator(_documents), WithJsonSchema(_DOCUMENTS)]
    top_n: Annotated[int, Field(ge=0, le=COUNT_LIMIT)] | None = None
    return_documents: bool | None = None


class ClassifyRequest(PoolingFields):
    """Texts, or pairs of texts, to classify. If `use_activation` is false, the scores of the labels are raw."""

    input: Annotated[list[str | Pair], BeforeValidator(_inputs), WithJsonSchema(_INPUTS)]
    use_activation: bool | None = None


Numbers = Annotated[
    msgspec.Raw,
    msgspec.Meta(extra_json_schema={"anyOf": [{"type": "array", "items": {"type": "number"}}, _TEXT]}),
]
"""A vector as a list, or as the base64 of its float32 numbers, little-endian. Already encoded as JSON."""


class PoolingUsage(msgspec.Struct):
    """Token counts of a request."""

    prompt_tokens: int
    total_tokens: int


class Embedding(msgspec.Struct, tag_field="object", tag="embedding"):
    """The vector of one input."""

    index: int
    embedding: Numbers


class EmbeddingAnswer(msgspec.Struct, tag_field="object", tag="list"):
    """The vectors of all inputs, in order."""

    data: list[Embedding]
    model: str
    usage: PoolingUsage


class Score(msgspec.Struct, tag_field="object", tag="score"):
    """How well one pair matches."""

    index: int
    score: float


class ScoreAnswer(msgspec.Struct, tag_field="object", tag="list"):
    """The scores of all pairs, in order."""

    id: str
    created: int
    model: str
    data: list[Score]
    usage: PoolingUsage


class RankedText(msgspec.Struct):
    """The text of a document."""

    text: str


class Rank(msgspec.Struct):
    """A document's index in the request, and how well it matches."""

    index: int
    relevance_score: float
    document: RankedText | msgspec.UnsetType = msgspec.UNSET


class RerankAnswer(msgspec.Struct):
    """Documents, the best first."""

    id: str
    model: str
    results: list[Rank]
    usage: PoolingUsage


class Classification(msgspec.Struct):
    """The likeliest label of an input, and the score of each label, in the order of the model's labels."""

    index: int
    label: str
    probs: list[float]
    num_classes: int


class ClassifyAnswer(msgspec.Struct, tag_field="object", tag="list"):
    """The labels of all inputs, in order."""

    id: str
    created: int
    model: str
    data: list[Classification]
    usage: PoolingUsage
