"""The request of POST /v1/responses, with its tools: functions. OpenAI's own tools are refused by name."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, WithJsonSchema

from plimsoll_runtime.api.schemas.chat import Effort, Unsupported
from plimsoll_runtime.api.schemas.constraints import (
    FORMATS,
    KINDS,
    JsonObjectFormat,
    Schema,
    TextFormat,
    by_type,
    type_of,
)
from plimsoll_runtime.api.schemas.response_input import NEVER, GivenInput
from plimsoll_runtime.api.schemas.sampling import (
    COUNT_LIMIT,
    EMPTY_VALUES,
    WITHOUT_EFFECT,
    CacheOptions,
    Count,
    GenerationFields,
    Lenient,
    Strict,
    invalid,
)
from plimsoll_runtime.api.schemas.tools import ALLOWED, MAX_TOOLS, NAMED, WORD, FunctionDefinition, Name
from plimsoll_runtime.engine.protocol.sampling_params import MAX_LOGPROBS

OTHER = "(other tool)"
FUNCTION = "(function)"
FORMS = frozenset({OTHER, FUNCTION})


class FunctionTool(FunctionDefinition):
    """A function that the model may call, with arguments of its schema; without `parameters`, an empty object. If
    `strict` is true, a schema that cannot be enforced completely is refused; otherwise the rest is enforced, and the
    header `X-Plimsoll-Ignored` names the other parts."""

    type: Literal["function"]

    def told(self) -> dict[str, Any]:
        """Return the tool as the response shows it."""
        names = ("type", "name", "description", "parameters", "strict")
        return {name: getattr(self, name) for name in names}


class ChosenFunction(Lenient):
    """A function by its name."""

    type: Literal["function"]
    name: Name

    def told(self) -> dict[str, Any]:
        """Return the choice as the response shows it."""
        return {"type": self.type, "name": self.name}


class AllowedTools(Lenient):
    """A subset of the tools; the model sees only these."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[ChosenFunction], Field(min_length=1, max_length=MAX_TOOLS)]

    def told(self) -> dict[str, Any]:
        """Return the choice as the response shows it."""
        return {"type": self.type, "mode": self.mode, "tools": [tool.told() for tool in self.tools]}


def _refuse(value: Any) -> Any:
    if (kind := type_of(value)) is None:
        raise ValueError("must be an object with a type")
    raise ValueError(f"tools of the type {kind[:40]!r} are not supported; use functions")


Refused = Annotated[Any, BeforeValidator(_refuse), WithJsonSchema(NEVER)]


def _tool_form(tool: Any) -> str:
    return FUNCTION if type_of(tool) == "function" else OTHER


def _choice_form(choice: Any) -> str:
    if isinstance(choice, str):
        return WORD
    return {"function": NAMED, "allowed_tools": ALLOWED}.get(type_of(choice) or "", OTHER)


ResponseTool = Annotated[
    Annotated[FunctionTool, Tag(FUNCTION)] | Annotated[Refused, Tag(OTHER)], Discriminator(_tool_form)
]
ResponseTools = Annotated[list[ResponseTool], Field(max_length=MAX_TOOLS)]
ResponseToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag(WORD)]
    | Annotated[ChosenFunction, Tag(NAMED)]
    | Annotated[AllowedTools, Tag(ALLOWED)]
    | Annotated[Refused, Tag(OTHER)],
    Discriminator(_choice_form),
]

MAX_TEMPERATURE = 2.0
"""OpenAI's limit, because only OpenAI's clients use responses."""
LOGPROBS = "message.output_text.logprobs"
Include = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]
"""All except the first two concern features that no response here has."""

REFUSED = {
    "conversation": "conversations are not stored here; continue a response with 'previous_response_id'",
    "prompt": "prompt templates are not stored here; send the text in 'input'",
    "context_management": "contexts are not compacted here; 'truncation': 'auto' leaves out the oldest turns",
    "moderation": "moderation is not supported; leave it out",
    "image": "this model reads text only; leave it out",
    "access_programs": "access programs are not supported; leave it out",
}


class JsonSchemaText(Strict):
    """JSON documents of a schema. If `strict` is true, a schema that cannot be enforced completely is refused;
    otherwise the rest is enforced, and the header `X-Plimsoll-Ignored` names the other parts."""

    type: Literal["json_schema"]
    name: Annotated[str, Field(max_length=256)]
    schema_: Annotated[Schema, Field(alias="schema")]
    description: str | None = None
    strict: bool | None = None


TextFormats = Annotated[
    Annotated[TextFormat, Tag(FORMATS["text"])]
    | Annotated[JsonObjectFormat, Tag(FORMATS["json_object"])]
    | Annotated[JsonSchemaText, Tag(FORMATS["json_schema"])],
    by_type(FORMATS, "text_format", KINDS),
]


class TextConfig(Strict):
    """Format and verbosity of the output."""

    format: TextFormats | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


def _openais(temperature: float | None) -> float | None:
    if temperature is not None and not 0 <= temperature <= MAX_TEMPERATURE:
        raise ValueError(f"must be at least 0 and at most {MAX_TEMPERATURE:g}, not {temperature:g}")
    return temperature


_TEMPERATURE = {"anyOf": [{"type": "number", "minimum": 0, "maximum": MAX_TEMPERATURE}, {"type": "null"}]}


class ReasoningConfig(Lenient):
    """Settings of the reasoning. With any kind of summary, the response returns all reasoning as a summary."""

    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None

    @property
    def summarised(self) -> str | None:
        """The requested kind of summary, from `summary` or its old name `generate_summary`; None if none is
        requested."""
        return self.summary or self.generate_summary


class ResponseRequest(GenerationFields):
    """OpenAI's request for a response, with our additions."""

    input: GivenInput
    instructions: str | None = None
    previous_response_id: Annotated[str, Field(max_length=256)] | None = None
    max_output_tokens: Annotated[int, Field(ge=1, le=COUNT_LIMIT)] | None = None
    max_tool_calls: Annotated[Count | None, WITHOUT_EFFECT] = None
    temperature: Annotated[float | None, AfterValidator(_openais), WithJsonSchema(_TEMPERATURE)] = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    include: list[Include] | None = None
    tools: ResponseTools | None = None
    tool_choice: ResponseToolChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    truncation: Literal["auto", "disabled"] | None = None
    metadata: Annotated[Annotated[dict[str, str], Field(max_length=16)] | None, WITHOUT_EFFECT] = None
    store: bool | None = None
    background: bool | None = None
    conversation: Unsupported = None
    prompt: Unsupported = None
    context_management: Unsupported = None
    moderation: Unsupported = None
    image: Unsupported = None
    access_programs: Unsupported = None
    prompt_cache_options: CacheOptions | None = None

    chat_template_kwargs: dict[str, Any] | None = None
    thinking_budget: Count | None = None

    def check(self) -> None:
        """Raise ApiError for unsupported or contradictory fields."""
        for field, reason in REFUSED.items():
            if getattr(self, field) not in EMPTY_VALUES:
                raise invalid(field, reason)
        if self.prompt_cache_options is not None:
            self.prompt_cache_options.check()
        if self.top_logprobs and not self.tells_logprobs:
            raise invalid("top_logprobs", f"it needs {LOGPROBS!r} in 'include'")
        if self.background and not self.stored:
            raise invalid("background", "background responses must be stored; leave out 'store': false")
        if self.stream_options is not None and not self.stream:
            raise invalid("stream_options", "it needs 'stream': true")

    @property
    def stored(self) -> bool:
        """Whether the response is stored."""
        return self.store is not False

    @property
    def tells_logprobs(self) -> bool:
        """Whether the text has log probabilities."""
        return LOGPROBS in (self.include or ())
