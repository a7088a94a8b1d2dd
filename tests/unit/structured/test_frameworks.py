"""Schemas that pydantic, msgspec, attrs and zod generate for the types in their documentation."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import structured_support
from structured_support.typed import Typed, typed
from structured_support.walk import documents, takes

from plimsoll_runtime.engine.protocol.constraint import Constraint, ConstraintError
from plimsoll_runtime.structured.grammar import check
from plimsoll_runtime.structured.schemas.normalise import normalise

TYPED = {each.name: each for each in typed()}
ZOD: dict[str, Any] = json.loads((Path(structured_support.__path__[0]) / "zod_schemas.json").read_text())
NAMES = [*TYPED, *ZOD]
NOT_PYTHON = ("p{", "u{")
"""Syntax that Python's regular expressions do not support."""

SAYS_LESS = (
    "Base64", "ByteSize", "Decimal", "DirectoryPath", "FilePath", "HttpUrl", "IPv4Interface", "IPv4Network",
    "IPv6Interface", "IPv6Network", "IPvAnyAddress", "ImportString", "Json", "NaiveDatetime", "PastDate", "Pattern",
    "NewPath",
    "PostgresDsn", "UUID4", "bytearray", "bytes", "complex", "dict of UUIDs", "dict of dates", "dict of floats",
    "dict of ints", "dict of patterns", "models", "money", "msgspec datetime", "time", "discriminator that has",
)  # fmt: skip
"""Types that their schema does not describe completely: it has an annotation-only format, or none."""

NOT_ENFORCED = {
    "pydantic set": ["/uniqueItems"],
    "pydantic frozenset": ["/uniqueItems"],
    "pydantic dict of dates": ["/propertyNames"],
    "pydantic a model with a discriminator that has a default": ["/properties/either/oneOf"],
    "msgspec set": ["/uniqueItems"],
    "msgspec frozenset": ["/uniqueItems"],
    "iso.duration": ["/pattern"],
    "float32": ["/minimum", "/maximum"],
}

EXAMPLES = {
    "string.endsWith": ["azzz", "zzz"],
    "string.includes": ["a---b"],
    "templateLiteral": ["hello, you!"],
    "email": ["ada@example.com"],
    "email.rfc5322": ["ada@example.com"],
}
"""Outputs for schemas in which random walks do not end."""


@cache
def texts(name: str) -> list[str]:
    schema, short = schema_of(name), name.split()[0]
    constraint = Constraint.json(schema, strict=False)
    if short in EXAMPLES:
        found = [json.dumps(example) for example in EXAMPLES[short]]
        assert all(takes(constraint, text) for text in found)
        return found
    found = list(documents(constraint, 8, random.Random(name)))
    assert found, "no walk ended"
    return found


def schema_of(name: str) -> Any:
    return TYPED[name].schema if name in TYPED else ZOD[name]


def left_of(name: str) -> list[str]:
    return [each.pointer for each in normalise(json.loads(json.dumps(schema_of(name)))).unenforced]


@pytest.mark.matrix(62)
@pytest.mark.parametrize("name", NAMES)
def test_answers_are_of_the_schema(name: str) -> None:
    schema = schema_of(name)
    check(Constraint.json(schema, strict=False))
    found = normalise(json.loads(json.dumps(schema)))
    kept_to = found.schema if found.unenforced else schema
    validator = jsonschema.validators.validator_for(kept_to, jsonschema.Draft202012Validator)(kept_to)
    for text in texts(name):
        if not any(sign in json.dumps(kept_to) for sign in NOT_PYTHON):
            validator.validate(json.loads(text))


@pytest.mark.parametrize("each", TYPED.values(), ids=list(TYPED))
def test_their_framework_reads_them(each: Typed) -> None:
    if any(word in each.name for word in SAYS_LESS):
        pytest.skip("its schema says less than the type")
    for text in texts(each.name):
        each.read(text)


def test_what_is_not_enforced_is_known() -> None:
    found = {name.removesuffix(", written") if name in TYPED else name.split()[0]: left_of(name) for name in NAMES}
    assert {name: left for name, left in found.items() if left} == NOT_ENFORCED


@pytest.mark.matrix(243)
@pytest.mark.parametrize("name", NAMES)
def test_all_of_it_is_enforced_or_it_is_refused(name: str) -> None:
    constraint = Constraint.json(schema_of(name))
    if not left_of(name):
        check(constraint)
        return
    with pytest.raises(ConstraintError, match=r"^at '/"):
        check(constraint)
