"""Schemas are rewritten for a grammar: what they accept stays accepted, and what they refuse is accepted only if
something is on the list of what is not enforced.
"""

from __future__ import annotations

import json
from typing import Any

import jsonschema
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from structured_support.drawn import schemas, values

from plimsoll_runtime.engine.constraint import ConstraintError
from plimsoll_runtime.structured.schemas.normalise import Normalised, normalise

TEXT = {"type": "string"}
OBJECT = {"type": "object"}
ARRAY = {"type": "array"}


def accepts(schema: Any, value: Any) -> bool:
    return bool(jsonschema.Draft202012Validator(schema).is_valid(value))


def rewritten(schema: Any) -> Normalised:
    """As it is after it was sent."""
    return normalise(json.loads(json.dumps(schema)))


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(schemas(), st.lists(values, min_size=1, max_size=6))
def test_nothing_is_lost_and_nothing_let_in(schema: dict[str, Any], tried: list[Any]) -> None:
    try:
        found = rewritten(schema)
    except ConstraintError:  # nothing satisfies it
        assert not any(_accepts_or_loops(schema, value) for value in tried)
        return
    for value in tried:
        before = _accepts_or_loops(schema, value)
        if before or not found.unenforced:
            assert accepts(found.schema, value) == before, (found.schema, found.unenforced)
    try:
        again = normalise(found.schema)
    except ConstraintError:
        again = Normalised({"not": {}})
    assert not again.unenforced
    assert all(accepts(again.schema, value) == accepts(found.schema, value) for value in tried)


def _accepts_or_loops(schema: Any, value: Any) -> bool:
    """A schema that refers to itself in place means nothing: the validator's stack overflows, or panics."""
    try:
        return accepts(schema, value)
    except BaseException as error:
        if not isinstance(error, RecursionError) and type(error).__name__ != "PanicException":
            raise
        assume(False)
        raise
