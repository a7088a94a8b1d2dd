"""Tools of a chat: what the template shows, the constraint that follows from the tool choice, and the enforceable
parts of the tools' schemas."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from plimsoll_runtime.api.generation.schema_warnings import MOST_TOLD, EnforcedSchema, Fields, path
from plimsoll_runtime.api.schemas.chat import ChatRequest
from plimsoll_runtime.api.schemas.sampling import invalid
from plimsoll_runtime.api.schemas.tools import AllowedChoice, FunctionDefinition
from plimsoll_runtime.api.served_model import ServedModel
from plimsoll_runtime.engine.protocol.constraint import MOST_BYTES, Constraint, ConstraintError
from plimsoll_runtime.structured.grammar import enforceable
from plimsoll_runtime.structured.schemas.normalise import Normalised, normalise
from plimsoll_runtime.structured.schemas.problems import refuse
from plimsoll_runtime.structured.schemas.types import SHAPES
from plimsoll_runtime.tools.base import Tool, ToolFormat, UnknownFormat
from plimsoll_runtime.tools.grammar import or_document
from plimsoll_runtime.tools.registry import fitting, named

_MOST_KEPT_BYTES = 16 * 1024
"""Longest schema whose normalised form is cached: agents send the same tools with each request."""


def enforced(tools: Sequence[Tool]) -> Sequence[tuple[Tool, Sequence[str]]]:
    """Return tools with the enforceable parts of their schemas, each with the JSON pointers of the other parts.
    Raises ConstraintError if a strict tool's schema is not completely enforceable, and for schemas above the size
    limit."""
    texts = [_text(tool) for tool in tools]
    if (size := sum(map(len, texts))) > MOST_BYTES:
        raise ConstraintError(
            f"the tools' schemas have {size} characters, above the limit of {MOST_BYTES}; shorten them"
        )
    return [_enforced(tool, text) for tool, text in zip(tools, texts, strict=True)]


def _enforced(tool: Tool, text: str) -> tuple[Tool, Sequence[str]]:
    try:
        found = _kept(text) if len(text) <= _MOST_KEPT_BYTES else normalise(json.loads(text))
        refuse(found.unenforced if tool.strict else ())
    except ConstraintError as error:
        if tool.strict:
            raise ConstraintError(f"the tool {tool.name!r}, {error}") from error
        return shallow(tool), [""]
    return replace(tool, parameters=found.schema), [each.pointer for each in found.unenforced]


def shallow(tool: Tool) -> Tool:
    """Return a tool whose schema has only the names, types and required fields of its top level."""
    given = tool.parameters.get("properties")
    fields = given if isinstance(given, dict) else {}
    types = {name: {"type": field["type"]} if _has_type(field) else {} for name, field in fields.items()}
    required = tool.parameters.get("required")
    needed = {"required": required} if SHAPES["required"].fits(required) else {}
    return replace(tool, parameters={"type": "object", "properties": types} | needed)


def _has_type(field: Any) -> bool:
    return isinstance(field, dict) and SHAPES["type"].fits(field.get("type"))


def _text(tool: Tool) -> str:
    try:
        return json.dumps(tool.parameters)
    except RecursionError as error:
        raise ConstraintError(f"the schema of the tool {tool.name!r} is nested too deeply; flatten it") from error


@lru_cache(512)
def _kept(text: str) -> Normalised:
    return normalise(json.loads(text))


# Looking for formats of other packages reads the installed distributions, so it runs once for each template or name,
# not for each request.
_fitting = lru_cache(64)(fitting)
_named = lru_cache(64)(named)


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools of a request. `definitions` are shown to the model, which may call those in `callable`. If `required`,
    the output must call a tool; if `by_name`, the client has named that tool, the only one in `callable`. If
    `parallel`, the output may have several calls. `old` says that the request has OpenAI's deprecated fields,
    `functions` and `function_call`. With `form`, an output without calls is a document of this JSON schema instead of
    text."""

    format: ToolFormat
    definitions: Sequence[FunctionDefinition]
    callable: Sequence[Tool]
    required: bool
    by_name: bool
    parallel: bool
    old: bool
    form: Mapping[str, Any] | None = None

    @property
    def shown(self) -> list[dict[str, Any]]:
        """The tools as the chat template gets them."""
        return [definition.shown() for definition in self.definitions]

    def kept_to(self, model: ServedModel, fields: Fields) -> EnforcedSchema:
        """Return the constraint for the output, with the paths of the schema parts that it does not enforce. Raises
        ApiError if a schema must be enforced and cannot be.

        The constraint is None if text is allowed and the format has no grammar: calls are then only parsed.
        """
        try:
            found = enforced(self.callable)
            constraint = self._grammar([tool for tool, _ in found], model)
        except ConstraintError as error:
            others = self.instead(model, fields)
            if not others:
                raise invalid(self.field, str(error)) from error
            return others[0]
        wheres = self.parameters(fields)
        paths = [path(at, one) for at, (_, left) in zip(wheres, found, strict=True) for one in left]
        return EnforcedSchema(constraint, paths[:MOST_TOLD])

    def instead(self, model: ServedModel, fields: Fields) -> Sequence[EnforcedSchema]:
        """Return weaker constraints, in the order to try, for schemas that cannot be enforced: the names and types of
        arguments, then no constraint, if the output may be plain text. Empty if a tool is `strict`."""
        if any(tool.strict for tool in self.callable):
            return ()
        unenforced = self.parameters(fields)
        last = () if self._is_wordless else (EnforcedSchema(None, unenforced),)
        try:
            return EnforcedSchema(self._grammar([shallow(tool) for tool in self.callable], model), unenforced), *last
        except ConstraintError:
            return last

    def parameters(self, fields: Fields) -> Sequence[str]:
        """Return the path of each callable tool's schema in the request, for example
        `tools[NAME].function.parameters`."""
        return [fields.of_tool(tool.name, old=self.old) for tool in self.callable]

    @property
    def _is_wordless(self) -> bool:
        return self.required or self.form is not None

    def _grammar(self, tools: Sequence[Tool], model: ServedModel) -> Constraint:
        """Return the constraint for outputs with calls of these tools. Raises ConstraintError."""
        tokenizer = model.tokenizer

        def special_id(marker: str) -> int | None:
            found = tokenizer.token_id(marker)
            return found if found in tokenizer.special_ids else None

        grammar = self.format.grammar(tools, special_id, required=self._is_wordless, parallel=self.parallel)
        if self.form is not None:
            grammar = or_document(grammar, self.form)
        return Constraint("lark", grammar)

    @property
    def field(self) -> str:
        """Name of the request's field with the tools."""
        return "functions" if self.old else "tools"


def tool_use_of(body: ChatRequest, model: ServedModel) -> ToolUse | None:
    """Return the tools of a request; None if it has no tools, or its tool choice is `none`. Raises ApiError."""
    old = body.functions is not None
    definitions = _allowed(body)
    choice = _choice(body)
    if not definitions or choice == "none":
        return None
    field = "functions" if old else "tools"
    chosen = tool_format_of(model, field)
    if chosen is None:
        raise invalid(field, "this model's chat template does not support tools; leave it out")
    by_name = choice not in ("auto", "required")
    tools = [definition.tool() for definition in definitions if not by_name or definition.name == choice]
    if not tools:
        raise invalid("function_call" if old else "tool_choice", f"the request has no tool {choice!r}")
    form = body.constraint()
    if form is not None and form.kind != "json":
        raise invalid(body.constraint_field, "with tools, the output can only be constrained to JSON")
    try:
        documents = None if form is None else enforceable(form)
    except ConstraintError as error:
        raise invalid(body.constraint_field, str(error)) from error
    parallel = body.parallel_tool_calls is not False and not old and not by_name
    required = choice != "auto"
    return ToolUse(chosen, definitions, tools, required, by_name, parallel, old, None if required else documents)


def tool_format_of(model: ServedModel, field: str) -> ToolFormat | None:
    """Return a model's tool-call format; None if its chat template does not support tools. Raises ApiError that
    names `field` if the format is not known."""
    template, name = model.tokenizer.chat_template, model.options.tool_format
    source = "" if template is None else template.source(tools=True)
    if "tools" not in source:
        return None
    try:
        found = _fitting(source) if name is None else _named(name)
    except UnknownFormat as error:
        raise invalid(field, str(error)) from error
    if found is None:
        raise invalid(field, "this model's tool-call format is not known; start the server with --tool-format")
    return found


def _allowed(body: ChatRequest) -> list[FunctionDefinition]:
    """Return the functions that the model may see. Raises ApiError."""
    given = [tool.function for tool in body.tools or ()] or list(body.functions or ())
    if not isinstance(body.tool_choice, AllowedChoice):
        return given
    names = {tool.function.name for tool in body.tool_choice.allowed_tools.tools}
    if unknown := sorted(names.difference(function.name for function in given)):
        raise invalid("tool_choice.allowed_tools.tools", f"the request has no tool {unknown[0]!r}")
    return [function for function in given if function.name in names]


def _choice(body: ChatRequest) -> str:
    """Return the tool choice of a request: `none`, `auto`, `required` or a tool's name."""
    given = body.tool_choice if body.functions is None else body.function_call
    if given is None:
        return "auto"
    if isinstance(given, str):
        return given
    if isinstance(given, AllowedChoice):
        return given.allowed_tools.mode
    return given.name if body.functions is not None else given.function.name  # type: ignore[union-attr]
