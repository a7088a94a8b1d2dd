"""Constraints of the output, in OpenAI's fields and ours."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from plimsoll_runtime.engine.protocol.constraint import Constraint

Schema = dict[str, Any] | bool


class _Form(BaseModel):
    model_config = ConfigDict(extra="forbid", populate_by_name=True)


class TextFormat(_Form):
    """Any text."""

    type: Literal["text"]


class JsonObjectFormat(_Form):
    """Any JSON object."""

    type: Literal["json_object"]


class NamedSchema(_Form):
    """A JSON schema of the output. If `strict` is true, a schema that cannot be enforced completely is refused;
    otherwise the rest is enforced, and the header `X-Plimsoll-Ignored` names the other parts."""

    name: Annotated[str, Field(max_length=256)] | None = None
    description: str | None = None
    schema_: Annotated[Schema | None, Field(alias="schema")] = None
    strict: bool | None = None


class JsonSchemaFormat(_Form):
    """JSON documents of a schema."""

    type: Literal["json_schema"]
    json_schema: NamedSchema


FORMATS = {"text": "(text format)", "json_object": "(json object)", "json_schema": "(json schema)"}
"""Tags of the formats, by type; pydantic inserts them into the locations of errors."""
KINDS = "'text', 'json_object' or 'json_schema'"


def type_of(value: Any) -> str | None:
    """Return the `type` of a JSON object or of a parsed one; None if it has none."""
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return kind if isinstance(kind, str) else None


def by_type(tags: Mapping[str, str], error: str, kinds: str) -> Discriminator:
    """Return a discriminator that selects a member of a union by its field `type`. `tags` has the tag of each type.
    `error` is pydantic's name of the error for other types, and `kinds` lists the types in its message."""

    def tag(value: Any) -> str | None:
        return tags.get(type_of(value) or "")

    message = f"must be an object whose type is {kinds}"
    return Discriminator(tag, custom_error_type=error, custom_error_message=message)


ResponseFormat = Annotated[
    Annotated[TextFormat, Tag(FORMATS["text"])]
    | Annotated[JsonObjectFormat, Tag(FORMATS["json_object"])]
    | Annotated[JsonSchemaFormat, Tag(FORMATS["json_schema"])],
    by_type(FORMATS, "response_format", KINDS),
]


class StructuredOutputs(_Form):
    """A constraint of the output, in one of several forms. At most one field may be set."""

    json_: Annotated[Schema | str | None, Field(alias="json")] = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    structural_tag: dict[str, Any] | str | None = None


def of_format(given: TextFormat | JsonObjectFormat | JsonSchemaFormat) -> Constraint | None:
    """Return the constraint of a response format; None for any text. Raises ConstraintError for a schema that is too
    long."""
    if isinstance(given, TextFormat):
        return None
    if isinstance(given, JsonObjectFormat):
        return Constraint.json({"type": "object"})
    schema = given.json_schema.schema_
    return Constraint.json(True if schema is None else schema, strict=given.json_schema.strict is True)


def of_outputs(given: StructuredOutputs) -> Constraint | None:
    """Return the constraint of `structured_outputs`; None if no field is set. Raises ValueError if several are set, or
    ConstraintError for a constraint that is too long."""
    makers: dict[str, Any] = {
        "json": (partial(Constraint.json, strict=False), given.json_),
        "regex": (Constraint.regex, given.regex),
        "choice": (Constraint.choice, given.choice),
        "grammar": (Constraint.grammar, given.grammar),
        "structural_tag": (partial(Constraint.tags, strict=False), given.structural_tag),
    }
    chosen = {name: (make, value) for name, (make, value) in makers.items() if value is not None}
    if len(chosen) > 1:
        raise ValueError(f"has {' and '.join(chosen)}; give one of them")
    for make, value in chosen.values():
        constraint: Constraint = make(value)
        return constraint
    return None
