"""The request of POST /v1/responses, with its tools: functions. OpenAI's own tools are refused by name."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, WithJsonSchema

from plimsoll_runtime.api.schemas.chat import Effort, Unsupported
from plimsoll_runtime.api.schemas.constraints import (
    FORMATS,
    JsonObjectFormat,
    Schema,
    TextFormat,
    form_of_format,
    type_of,
)
from plimsoll_runtime.api.schemas.response_input import NEVER, GivenInput
from plimsoll_runtime.api.schemas.sampling import (
    COUNT_LIMIT,
    EMPTY_VALUES,
    WITHOUT_EFFECT,
    CacheOptions,
    Count,
    Lenient,
    ModelFields,
    Seed,
    ServiceTier,
    StreamOptions,
    Strict,
    invalid,
)
from plimsoll_runtime.api.schemas.tools import ALLOWED, MAX_TOOLS, NAMED, WORD, FunctionDefinition, Name
from plimsoll_runtime.engine.protocol.sampling_params import MAX_LOGPROBS

OTHER = "(other tool)"
FUNCTION = "(function)"
FORMS = frozenset({OTHER, FUNCTION})


class FunctionTool(Lenient):
    """A function that the model may call, with arguments of its schema; without `parameters`, an empty object. What
    cannot be enforced is refused where `strict` is true; else the rest is enforced, and the header `X-Plimsoll-Ignored`
    names what is not.
    """

    type: Literal["function"]
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    def definition(self) -> FunctionDefinition:
        """As chats know it."""
        return FunctionDefinition(
            name=self.name, description=self.description, parameters=self.parameters, strict=self.strict
        )

    def told(self) -> dict[str, Any]:
        """As the response tells it."""
        names = ("type", "name", "description", "parameters", "strict")
        return {name: getattr(self, name) for name in names}


class ChosenFunction(Lenient):
    """A function by its name."""

    type: Literal["function"]
    name: Name

    def told(self) -> dict[str, Any]:
        """As the response tells it."""
        return {"type": self.type, "name": self.name}


class AllowedTools(Lenient):
    """Some of the tools: the model is shown these alone."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[ChosenFunction], Field(min_length=1, max_length=MAX_TOOLS)]

    def told(self) -> dict[str, Any]:
        """As the response tells it."""
        return {"type": self.type, "mode": self.mode, "tools": [tool.told() for tool in self.tools]}


def _refuse(value: Any) -> Any:
    if (kind := type_of(value)) is None:
        raise ValueError("must be an object with a type")
    raise ValueError(f"tools of the type {kind[:40]!r} are not supported: functions are")


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
"""OpenAI's, whose clients alone ask for responses."""
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
"""All but the first two are of things that no response here has."""

REFUSED = {
    "conversation": "conversations are not kept here; go on from a response with 'previous_response_id'",
    "prompt": "prompt templates are not kept here; send the text in 'input'",
    "context_management": "contexts are not compacted here; 'truncation': 'auto' leaves out the oldest turns",
    "moderation": "there is no moderation",
    "image": "this model reads text only",
    "access_programs": "there are none",
}


class JsonSchemaText(Strict):
    """JSON documents of a schema. What of it cannot be enforced is refused where `strict` is true; else the rest is
    enforced, and the header `X-Plimsoll-Ignored` names what is not.
    """

    type: Literal["json_schema"]
    name: Annotated[str, Field(max_length=256)]
    schema_: Annotated[Schema, Field(alias="schema")]
    description: str | None = None
    strict: bool | None = None


TextFormats = Annotated[
    Annotated[TextFormat, Tag(FORMATS["text"])]
    | Annotated[JsonObjectFormat, Tag(FORMATS["json_object"])]
    | Annotated[JsonSchemaText, Tag(FORMATS["json_schema"])],
    Discriminator(
        form_of_format,
        custom_error_type="text_format",
        custom_error_message="must be an object whose type is 'text', 'json_object' or 'json_schema'",
    ),
]


class TextConfig(Strict):
    """What the answer is to be like."""

    format: TextFormats | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


def _openais(temperature: float | None) -> float | None:
    if temperature is not None and not 0 <= temperature <= MAX_TEMPERATURE:
        raise ValueError(f"must be at least 0 and at most {MAX_TEMPERATURE:g}, not {temperature:g}")
    return temperature


_TEMPERATURE = {"anyOf": [{"type": "number", "minimum": 0, "maximum": MAX_TEMPERATURE}, {"type": "null"}]}


class ReasoningConfig(Lenient):
    """How much the model is to think. Where a summary is asked for, whichever, all of its thoughts are told as one."""

    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None

    @property
    def summarised(self) -> str | None:
        """Which summary is asked for, by either of its names."""
        return self.summary or self.generate_summary


class ResponseRequest(ModelFields):
    """OpenAI's request for a response, with our additions."""

    input: GivenInput
    instructions: str | None = None
    previous_response_id: Annotated[str, Field(max_length=256)] | None = None
    max_output_tokens: Annotated[int, Field(ge=1, le=COUNT_LIMIT)] | None = None
    max_tool_calls: Annotated[Count | None, WITHOUT_EFFECT] = None
    temperature: Annotated[float | None, AfterValidator(_openais), WithJsonSchema(_TEMPERATURE)] = None
    top_p: float | None = None
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
    stream_options: StreamOptions | None = None
    user: Annotated[str | None, WITHOUT_EFFECT] = None
    safety_identifier: Annotated[str | None, WITHOUT_EFFECT] = None
    service_tier: ServiceTier = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: Annotated[str | None, WITHOUT_EFFECT] = None
    conversation: Unsupported = None
    prompt: Unsupported = None
    context_management: Unsupported = None
    moderation: Unsupported = None
    image: Unsupported = None
    access_programs: Unsupported = None
    prompt_cache_options: CacheOptions | None = None

    seed: Seed | None = None
    top_k: Annotated[int, Field(le=COUNT_LIMIT)] | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    ignore_eos: bool | None = None
    cache_salt: Annotated[str, Field(max_length=256)] | None = None
    priority: int | None = None
    deadline: float | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    thinking_budget: Count | None = None

    def check(self) -> None:
        """Raises ApiError for what cannot be done, or contradicts itself."""
        for field, reason in REFUSED.items():
            if getattr(self, field) not in EMPTY_VALUES:
                raise invalid(field, reason)
        if self.prompt_cache_options is not None:
            self.prompt_cache_options.check()
        if self.top_logprobs and not self.tells_logprobs:
            raise invalid("top_logprobs", f"it needs {LOGPROBS!r} in 'include'")
        if self.background and not self.stored:
            raise invalid("background", "what runs in the background must be kept: leave out 'store': false")
        if self.stream_options is not None and not self.stream:
            raise invalid("stream_options", "it needs 'stream': true")

    @property
    def stored(self) -> bool:
        """Whether the response is kept."""
        return self.store is not False

    @property
    def tells_logprobs(self) -> bool:
        """Whether words come with their log probabilities."""
        return LOGPROBS in (self.include or ())
