"""Tools in a chat's request, and tool calls in its messages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, WithJsonSchema

from plimsoll_runtime.api.schemas.constraints import type_of
from plimsoll_runtime.api.schemas.sampling import Lenient, NoEffect
from plimsoll_runtime.tools.base import Tool

MAX_TOOLS = 512
_NO_ARGUMENTS: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,128}$")]


class FunctionDefinition(Lenient):
    """A function that the model may call, with arguments of its schema; without `parameters`, an empty object. If
    `strict` is true, a schema that cannot be enforced completely is refused; otherwise the rest is enforced, and the
    header `X-Plimsoll-Ignored` names the other parts."""

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    def tool(self) -> Tool:
        """Return the tool for the tool-call formats."""
        parameters = _NO_ARGUMENTS if self.parameters is None else self.parameters
        return Tool(self.name, self.description, parameters, strict=bool(self.strict))

    def shown(self) -> dict[str, Any]:
        """Return the tool for chat templates."""
        told = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": {k: v for k, v in told.items() if v is not None}}


class ToolDefinition(Lenient):
    """A tool."""

    type: Literal["function"]
    function: FunctionDefinition


class NamedFunction(Lenient):
    """A function by its name."""

    name: Name


class NamedTool(Lenient):
    """A tool by its name."""

    type: Literal["function"]
    function: NamedFunction


class AllowedFunctions(Lenient):
    """A subset of the tools, of which the model may (`auto`) or must (`required`) call one."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(min_length=1, max_length=MAX_TOOLS)]


class AllowedChoice(Lenient):
    """A subset of the tools; the model sees only these."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedFunctions


Tools = Annotated[list[ToolDefinition], Field(max_length=MAX_TOOLS)]
Functions = Annotated[list[FunctionDefinition], Field(max_length=MAX_TOOLS)]
WORD, NAMED, ALLOWED = "(word)", "(named)", "(allowed tools)"
"""Tags of the types of a tool choice; pydantic inserts them into the locations of errors."""


def _form(choice: Any) -> str:
    return WORD if isinstance(choice, str) else NAMED


def _tool_form(choice: Any) -> str:
    return ALLOWED if type_of(choice) == "allowed_tools" else _form(choice)


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag(WORD)]
    | Annotated[NamedTool, Tag(NAMED)]
    | Annotated[AllowedChoice, Tag(ALLOWED)],
    Discriminator(_tool_form),
]
FunctionChoice = Annotated[
    Annotated[Literal["none", "auto"], Tag(WORD)] | Annotated[NamedFunction, Tag(NAMED)], Discriminator(_form)
]


def _written(arguments: Any) -> Any:
    return json.dumps(arguments, ensure_ascii=False) if isinstance(arguments, dict | list) else arguments


CalledArguments = Annotated[
    str,
    BeforeValidator(_written),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "object"}, {"type": "array"}]}),
]
"""Arguments of a tool call in the conversation, as the model wrote them: a JSON object as text, the start of one, or
other text. Some clients send the object itself."""


class CalledFunction(Lenient):
    """The function that a message of the assistant called. `arguments` are a JSON object as text, or the start of
    one."""

    name: str
    arguments: CalledArguments

    def shown(self) -> dict[str, Any]:
        """Return the function, its arguments as text."""
        return {"name": self.name, "arguments": self.arguments}


class ToolCall(Lenient):
    """A tool call in a message of the assistant."""

    id: Annotated[str, Field(max_length=256)]
    type: Literal["function"] = "function"
    function: CalledFunction
    index: NoEffect = None
    status: NoEffect = None

    def shown(self) -> dict[str, Any]:
        """Return the call, its arguments as text."""
        return {"id": self.id, "type": "function", "function": self.function.shown()}
