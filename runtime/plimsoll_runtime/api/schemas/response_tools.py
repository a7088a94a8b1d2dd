"""Tools of a response, and how they may be chosen: functions. OpenAI's own tools are refused by name."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, WithJsonSchema

from plimsoll_runtime.api.schemas.constraints import type_of
from plimsoll_runtime.api.schemas.response_input import NEVER
from plimsoll_runtime.api.schemas.sampling import Lenient
from plimsoll_runtime.api.schemas.tools import ALLOWED, MAX_TOOLS, NAMED, WORD, FunctionDefinition, Name

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
