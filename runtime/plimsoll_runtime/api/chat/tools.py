"""Tools of a chat: what the template shows of them, which constraint follows from the tool choice, and which parts of
their schemas can be enforced.
"""

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
"""Of a schema that is kept rewritten: agents send the same tools with each request."""


def enforced(tools: Sequence[Tool]) -> Sequence[tuple[Tool, Sequence[str]]]:
    """Tools with what can be enforced of their schemas, each with the JSON pointers of what cannot. Raises
    ConstraintError where a tool is strict and not all can be, and for more than a constraint may have.
    """
    texts = [_text(tool) for tool in tools]
    if (size := sum(map(len, texts))) > MOST_BYTES:
        raise ConstraintError(f"the tools' schemas have {size} characters, and {MOST_BYTES} are the most")
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
    """With the names of an object's fields and their types, and which of them must be there."""
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
        raise ConstraintError(f"the schema of the tool {tool.name!r} is nested too deeply") from error


@lru_cache(512)
def _kept(text: str) -> Normalised:
    return normalise(json.loads(text))


# Looking for other packages' formats reads what is installed: once for a template or a name, not for each request.
_fitting = lru_cache(64)(fitting)
_named = lru_cache(64)(named)


@dataclass(frozen=True, slots=True)
class ToolUse:
    """What a request says of tools. A call is `required`, of the one tool that it has `by_name`, several are
    `parallel`. `old`: in the fields that OpenAI had before, `functions` and `function_call`. `form`: the schema of the
    documents that an answer without calls is one of; then there are no words beside calls.
    """

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
        """The tools, as the chat template knows them."""
        return [definition.shown() for definition in self.definitions]

    def kept_to(self, model: ServedModel, fields: Fields) -> EnforcedSchema:
        """What the answer is kept to. Raises ApiError for what cannot be enforced, and has to be.

        None where it may be words and the format has no grammar: then calls are only read.
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
        """What else the answer may be kept to, in this order, where the schemas of the arguments cannot be enforced:
        the names and types of the arguments, then nothing unless a call is required. Empty where a tool is `strict`.
        """
        if any(tool.strict for tool in self.callable):
            return ()
        unenforced = self.parameters(fields)
        last = () if self._is_wordless else (EnforcedSchema(None, unenforced),)
        try:
            return EnforcedSchema(self._grammar([shallow(tool) for tool in self.callable], model), unenforced), *last
        except ConstraintError:
            return last

    def parameters(self, fields: Fields) -> Sequence[str]:
        """Where the schemas of the tools stand that can be called."""
        return [fields.of_tool(tool.name, old=self.old) for tool in self.callable]

    @property
    def _is_wordless(self) -> bool:
        return self.required or self.form is not None

    def _grammar(self, tools: Sequence[Tool], model: ServedModel) -> Constraint:
        """Answers with calls of these tools. Raises ConstraintError."""
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
        """Where the tools stand in the body."""
        return "functions" if self.old else "tools"


def tool_use_of(body: ChatRequest, model: ServedModel) -> ToolUse | None:
    """None where the model is to call nothing. Raises ApiError."""
    old = body.functions is not None
    definitions = _allowed(body)
    choice = _choice(body)
    if not definitions or choice == "none":
        return None
    field = "functions" if old else "tools"
    chosen = tool_format_of(model, field)
    if chosen is None:
        raise invalid(field, "this model's chat template shows no tools")
    by_name = choice not in ("auto", "required")
    tools = [definition.tool() for definition in definitions if not by_name or definition.name == choice]
    if not tools:
        raise invalid("function_call" if old else "tool_choice", f"there is no tool {choice!r}")
    form = body.constraint()
    if form is not None and form.kind != "json":
        raise invalid(body.constraint_field, "beside tools an answer can be kept to JSON, and to no other form")
    try:
        documents = None if form is None else enforceable(form)
    except ConstraintError as error:
        raise invalid(body.constraint_field, str(error)) from error
    parallel = body.parallel_tool_calls is not False and not old and not by_name
    required = choice != "auto"
    return ToolUse(chosen, definitions, tools, required, by_name, parallel, old, None if required else documents)


def tool_format_of(model: ServedModel, field: str) -> ToolFormat | None:
    """How a model writes calls; None where its chat template shows no tools. Raises ApiError, naming the field that has
    tools, where that is not known.
    """
    template, name = model.tokenizer.chat_template, model.options.tool_format
    source = "" if template is None else template.source(tools=True)
    if "tools" not in source:
        return None
    try:
        found = _fitting(source) if name is None else _named(name)
    except UnknownFormat as error:
        raise invalid(field, str(error)) from error
    if found is None:
        raise invalid(field, "how this model writes calls is not known; start the server with --tool-format")
    return found


def _allowed(body: ChatRequest) -> list[FunctionDefinition]:
    """The functions that the model may know of. Raises ApiError."""
    given = [tool.function for tool in body.tools or ()] or list(body.functions or ())
    if not isinstance(body.tool_choice, AllowedChoice):
        return given
    names = {tool.function.name for tool in body.tool_choice.allowed_tools.tools}
    if unknown := sorted(names.difference(function.name for function in given)):
        raise invalid("tool_choice.allowed_tools.tools", f"there is no tool {unknown[0]!r}")
    return [function for function in given if function.name in names]


def _choice(body: ChatRequest) -> str:
    """none, auto, required, or a tool's name."""
    given = body.tool_choice if body.functions is None else body.function_call
    if given is None:
        return "auto"
    if isinstance(given, str):
        return given
    if isinstance(given, AllowedChoice):
        return given.allowed_tools.mode
    return given.name if body.functions is not None else given.function.name  # type: ignore[union-attr]
