"""Validates objects against the structural schema, with the error texts of the API server."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from jsonschema import Draft4Validator
from jsonschema.exceptions import ValidationError

from plimsoll_runtime.local.manifest.crd import FieldError, Schema, child_schema, field_path


def schema_errors(body: Mapping[str, Any], schema: Schema) -> list[FieldError]:
    """Return all violations of the schema by an object with its defaults, sorted by path."""
    validator = Draft4Validator(_as_json_schema(schema))
    errors = [error for found in validator.iter_errors(body) for error in _translate(found)]
    errors += _duplicates(body, schema, "")
    return sorted(set_of(errors), key=lambda error: error.path)


def set_of(errors: Sequence[FieldError]) -> list[FieldError]:
    """Return the errors without duplicates. (Several alternatives of a schema may give the same error.)"""
    return list({str(error): error for error in errors}.values())


def _as_json_schema(node: Any) -> Any:
    """Convert Kubernetes' extensions into JSON Schema. (Otherwise OpenAPI 3.0 is JSON Schema draft 4.)"""
    if not isinstance(node, dict):
        return node
    converted: dict[str, Any] = {}
    for key, value in node.items():
        if key in ("properties", "patternProperties"):
            converted[key] = {name: _as_json_schema(inner) for name, inner in value.items()}
        elif key in ("allOf", "anyOf", "oneOf"):
            converted[key] = [_as_json_schema(inner) for inner in value]
        elif key in ("items", "additionalProperties", "not"):
            converted[key] = _as_json_schema(value)
        elif key not in ("default", "description", "format"):
            converted[key] = value
    if node.get("x-kubernetes-int-or-string"):
        converted["type"] = ["integer", "string"]
    if node.get("nullable") and "type" in converted:
        own = converted["type"]
        converted["type"] = [*([own] if isinstance(own, str) else own), "null"]
    return converted


def _translate(error: ValidationError) -> Iterator[FieldError]:
    path = field_path(list(error.absolute_path))
    word = str(error.validator)
    if word == "required":
        missing = [name for name in _said(error) if name not in _value(error)]
        for name in missing:
            yield FieldError(f"{path}.{name}" if path else name, "Required value", None, "")
        return
    if word in ("anyOf", "oneOf", "not", "allOf"):
        must = {
            "not": "must not validate the schema (not)",
            "oneOf": "must validate one and only one schema (oneOf)",
        }
        detail = must.get(word, f"must validate at least one schema ({word})")
        yield FieldError("", "Invalid value", "", f'"{path}" {detail}')
        return
    if word in _TRANSLATIONS:
        yield _TRANSLATIONS[word](path, error)
        return
    yield FieldError(path, "Invalid value", error.instance, error.message)


def _said(error: ValidationError) -> Any:
    """Return the value of the failed keyword in the schema."""
    return error.validator_value


def _value(error: ValidationError) -> Any:
    """Return the object's value at the error's path."""
    return error.instance


def _schema(error: ValidationError) -> Mapping[str, Any]:
    """Return the schema at the error's path."""
    return error.schema if isinstance(error.schema, Mapping) else {}


def _in_body(path: str) -> str:
    return f"{path} in body" if path else "in body"


def _type(path: str, error: ValidationError) -> FieldError:
    wanted = _said(error)
    names = wanted if isinstance(wanted, str) else ",".join(name for name in wanted if name != "null")
    shown = _type_name(_value(error))
    detail = f'{_in_body(path)} must be of type {names}: "{shown}"'
    return FieldError(path, "Type", shown, detail, found=_value(error), wanted=_schema(error))


def _type_name(value: Any) -> str:
    """Return the API server's name for the type of a value."""
    names: list[tuple[type, str]] = [
        (bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"), (list, "array"), (dict, "object"),
    ]  # fmt: skip
    return next((name for kind, name in names if isinstance(value, kind)), "null")


def _enum(path: str, error: ValidationError) -> FieldError:
    allowed = ", ".join(f'"{value}"' for value in _said(error))
    return FieldError(path, "Unsupported value", error.instance, f"supported values: {allowed}")


def _too_long(path: str, error: ValidationError) -> FieldError:
    limit = error.validator_value
    return FieldError(path, "Too long", None, f"may not be more than {limit} {'byte' if limit == 1 else 'bytes'}")


def _too_many(path: str, error: ValidationError) -> FieldError:
    limit = error.validator_value
    detail = f"must have at most {limit} {'item' if limit == 1 else 'items'}"
    return FieldError(path, "Too many", len(_value(error)), detail)


def _bound(words: str, exclusive: str, flag: str) -> Callable[[str, ValidationError], FieldError]:
    def translate(path: str, error: ValidationError) -> FieldError:
        said = exclusive if isinstance(error.schema, Mapping) and error.schema.get(flag) else words
        detail = f"{_in_body(path)} should be {said} {error.validator_value}"
        return FieldError(path, "Invalid value", error.instance, detail)

    return translate


def _should(text: str, *, value: Callable[[Any], Any] = lambda instance: instance) -> Any:
    def translate(path: str, error: ValidationError) -> FieldError:
        detail = f"{_in_body(path)} should {text.format(error.validator_value)}"
        return FieldError(path, "Invalid value", value(error.instance), detail)

    return translate


_TRANSLATIONS: dict[str, Callable[[str, ValidationError], FieldError]] = {
    "type": _type,
    "enum": _enum,
    "maxLength": _too_long,
    "maxItems": _too_many,
    "maxProperties": _too_many,
    "minimum": _bound("greater than or equal to", "greater than", "exclusiveMinimum"),
    "maximum": _bound("less than or equal to", "less than", "exclusiveMaximum"),
    "minLength": _should("be at least {} chars long"),
    "pattern": _should("match '{}'"),
    "multipleOf": _should("be a multiple of {}"),
    "minItems": _should("have at least {} items", value=len),
    "minProperties": _should("have at least {} properties", value=len),
}


def _duplicates(value: Any, schema: Schema, path: str) -> list[FieldError]:
    """Return errors for items that appear twice in lists of type set or map."""
    found: list[FieldError] = []
    if isinstance(value, dict):
        for key, item in value.items():
            found += _duplicates(item, child_schema(schema, key) or {}, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        seen: list[Any] = []
        for index, item in enumerate(value):
            identity = _identity(item, schema)
            if identity is not None and identity in seen:
                found.append(FieldError(f"{path}[{index}]", "Duplicate value", identity, ""))
            seen.append(identity)
            found += _duplicates(item, schema.get("items", {}), f"{path}[{index}]")
    return found


def _identity(item: Any, schema: Schema) -> Any:
    match schema.get("x-kubernetes-list-type"):
        case "set":
            return item
        case "map" if isinstance(item, dict):
            return {key: item.get(key) for key in schema["x-kubernetes-list-map-keys"]}
    return None
