"""Evaluates the schema's CEL rules (over several fields) like the API server does when an object is created."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from plimsoll_runtime.local.manifest.crd import FieldError, Schema, child_schema

if TYPE_CHECKING:
    import celpy

REASONS = {
    "FieldValueInvalid": "Invalid value",
    "FieldValueForbidden": "Forbidden",
    "FieldValueRequired": "Required value",
    "FieldValueDuplicate": "Duplicate value",
}


def rule_errors(body: Mapping[str, Any], schema: Schema) -> list[FieldError]:
    """Return the violations of the rules by an object that the schema accepts."""
    return list(_walk(body, schema, ""))


def _walk(value: Any, schema: Schema, path: str) -> Iterator[FieldError]:
    if value is None:
        return
    for rule in schema.get("x-kubernetes-validations", []):
        yield from _evaluate(rule, value, schema, path)
    if isinstance(value, dict):
        for key, item in value.items():
            named = f"{path}.{key}" if path else key
            where = named if key in schema.get("properties", {}) else f"{path}[{key}]"
            yield from _walk(item, child_schema(schema, key) or {}, where)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _walk(item, schema.get("items", {}), f"{path}[{index}]")


def _evaluate(rule: Mapping[str, Any], value: Any, schema: Schema, path: str) -> Iterator[FieldError]:
    text = rule["rule"]
    if re.search(r"\boldSelf\b", text):  # compares with the stored object, which does not exist on creation
        return
    from celpy.adapter import json_to_cel
    from celpy.evaluation import CELEvalError

    kind = schema.get("type", "")
    where = path + rule.get("fieldPath", "")
    activation = {"self": json_to_cel(value)}
    try:
        holds = bool(compiled(text).evaluate(activation))
    except CELEvalError as error:
        yield FieldError(path, "Invalid value", kind, f"{error.args[0]} evaluating rule: {_message(rule)}")
        return
    if not holds:
        title = REASONS[rule.get("reason", "FieldValueInvalid")]
        yield FieldError(where.removeprefix("."), title, kind, _failure_message(rule, activation))


def _failure_message(rule: Mapping[str, Any], activation: Mapping[str, Any]) -> str:
    from celpy.evaluation import CELEvalError

    if "messageExpression" not in rule:
        return _message(rule)
    try:
        return str(compiled(rule["messageExpression"]).evaluate(dict(activation)))
    except CELEvalError:
        return _message(rule)  # the API server falls back to it too


def _message(rule: Mapping[str, Any]) -> str:
    return str(rule.get("message") or f"failed rule: {rule['rule']}")


@cache
def compiled(text: str) -> celpy.Runner:
    """Return a rule's program, compiled once. Raises celpy.CELParseError."""
    import celpy

    from plimsoll_runtime.local.manifest.cel_functions import FUNCTIONS

    environment = celpy.Environment()
    return environment.program(environment.compile(text), functions=dict(FUNCTIONS))
