"""The request of POST /v1/chat/completions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, WithJsonSchema

from plimsoll_runtime.api.schemas.parts import REFUSAL, Content, ImagePart, why_refused
from plimsoll_runtime.api.schemas.sampling import (
    EMPTY,
    EMPTY_VALUES,
    CacheOptions,
    Count,
    Lenient,
    NoEffect,
    SamplingFields,
    invalid,
)
from plimsoll_runtime.api.schemas.tools import (
    MAX_TOOLS,
    CalledFunction,
    FunctionChoice,
    Functions,
    ToolCall,
    ToolChoice,
    Tools,
)
from plimsoll_runtime.engine.protocol.sampling_params import MAX_LOGPROBS
from plimsoll_runtime.options import ImageParts

MAX_MESSAGES = 4096

_SHOWN_AS = {"developer": "system", "function": "tool"}

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]

Unsupported = Annotated[Any, WithJsonSchema(EMPTY)]

NOT_YET = {
    "audio": "audio is not supported",
    "web_search_options": "web search is not supported",
}


class ChatMessage(Lenient):
    """One message. Output fields that clients send back are allowed if they are empty."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Content | None = None
    name: Annotated[str, Field(max_length=256)] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=MAX_TOOLS)] | None = None
    tool_call_id: Annotated[str, Field(max_length=256)] | None = None
    function_call: CalledFunction | None = None
    refusal: str | None = None
    annotations: Unsupported = None
    audio: Unsupported = None

    def rendered(self, where: str, images: ImageParts = "refuse") -> dict[str, Any]:
        """Return the message for a chat template, with the arguments of tool calls as text. Raises ApiError for
        content that no template here supports; `where` is the message's path."""
        for field in ("annotations", "audio"):
            if getattr(self, field) not in EMPTY_VALUES:
                raise invalid(f"{where}.{field}", "it is not supported; leave it out")
        calls = self._calls(where)
        content = self._content(where, images)
        if content is None and not calls:
            raise invalid(f"{where}.content", "it must be a text or a list of text parts")
        if self.role == "tool" and not self.tool_call_id:
            raise invalid(f"{where}.tool_call_id", "it must be the id of the tool call that this result belongs to")
        optional = {
            "name": self.name,
            "reasoning_content": self.reasoning_content or self.reasoning,
            "tool_calls": calls or None,
            "tool_call_id": self.tool_call_id,
        }
        role = _SHOWN_AS.get(self.role, self.role)
        return {"role": role, "content": content or ""} | {k: v for k, v in optional.items() if v is not None}

    def _content(self, where: str, images: ImageParts) -> str | None:
        """Return the message's text, including refusals; None if there is no content. Raises ApiError."""
        parts = self.content if isinstance(self.content, list) else []
        for index, part in enumerate(parts):
            if isinstance(part, ImagePart) and images == "refuse":
                raise invalid(f"{where}.content[{index}].type", why_refused("part", part.type))
        texts = [self.content] if isinstance(self.content, str) else [part.shown for part in parts]
        refusals = [f"content[{index}].type" for index, part in enumerate(parts) if part.type == REFUSAL]
        refusals += ["refusal"] if self.refusal else []
        if refusals and self.role != "assistant":
            raise invalid(
                f"{where}.{refusals[0]}", f"only messages of the assistant may have a refusal, not of the {self.role}"
            )
        if self.refusal:
            texts.append(self.refusal)
        return "\n".join(texts) if texts or self.content is not None else None

    def _calls(self, where: str) -> list[dict[str, Any]]:
        """Return the tool calls of an assistant's message. Raises ApiError."""
        shown = [call.shown() for call in self.tool_calls or ()]
        if self.function_call is not None:
            shown.append({"type": "function", "function": self.function_call.shown()})
        if shown and self.role != "assistant":
            field = "tool_calls" if self.tool_calls else "function_call"
            raise invalid(f"{where}.{field}", "only messages of the assistant may have tool calls")
        return shown


class ChatRequest(SamplingFields):
    """OpenAI's chat completion request, with our additions."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    modalities: list[Literal["text"]] | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    functions: Functions | None = None
    function_call: FunctionChoice | None = None
    audio: Unsupported = None
    prediction: NoEffect = None
    prompt_cache_options: CacheOptions | None = None
    reasoning_effort: Effort | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    web_search_options: Unsupported = None

    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    thinking_budget: Count | None = None
    include_reasoning: bool | None = None
    thinking_token_budget: Count | None = None

    def check(self) -> None:
        """Raise ApiError for unsupported or contradictory fields."""
        self.check_stream_options()
        for field, reason in NOT_YET.items():
            if getattr(self, field) not in EMPTY_VALUES:
                raise invalid(field, reason)
        if self.prompt_cache_options is not None:
            self.prompt_cache_options.check()
        if self.tools and self.functions:
            raise invalid("functions", "'tools' is also set; leave out 'functions'")
        if not self.tools and self.tool_choice not in (None, "none", "auto"):
            raise invalid("tool_choice", "it needs 'tools'")
        if not self.functions and self.function_call not in (None, "none", "auto"):
            raise invalid("function_call", "it needs 'functions'")
        if self.top_logprobs and not self.logprobs:
            raise invalid("top_logprobs", "it needs 'logprobs': true")
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            raise invalid("max_tokens", "it differs from 'max_completion_tokens'; send only that one")
        if None not in (self.thinking_budget, self.thinking_token_budget):
            raise invalid("thinking_token_budget", "'thinking_budget' is also set; leave one out")
        if self.continue_final_message and self.add_generation_prompt:
            raise invalid("add_generation_prompt", "it contradicts 'continue_final_message'")

    @property
    def most_thoughts(self) -> int | None:
        """Most reasoning tokens of a choice; None if the request does not set it."""
        return self.thinking_token_budget if self.thinking_budget is None else self.thinking_budget

    @property
    def budget_field(self) -> str:
        """Name of the field that sets `most_thoughts`."""
        return "thinking_token_budget" if self.thinking_budget is None else "thinking_budget"

    @property
    def token_limit(self) -> int | None:
        """Most output tokens of a choice; None: as many as the context length allows."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
