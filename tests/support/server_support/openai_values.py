"""Samples of all values in OpenAI's types: each sample is a minimal value of its type with one variation."""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Required, Union, get_args, get_origin

from typing_extensions import get_type_hints, is_typeddict

SIMPLE: Mapping[Any, Any] = {str: "x", int: 1, float: 0.5, bool: True, object: {}, Any: {}}
TAGS = ("type", "role")
"""Fields that distinguish the members of a union."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A sample of a type.

    `place` is where it differs from the minimal value, such as `messages[][user].content[][text]`. For a member of a
    union its kind is part of the place; for a value of a Literal the place ends with it.
    """

    place: str
    value: Any


def samples(kind: Any, place: str, given: Mapping[str, Any], within: tuple[Any, ...] = ()) -> Iterator[Sample]:
    """Yield the minimal sample of a type, then one for each value and each object in it. `given` has values, by the
    end of a place, for types that are too general."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Annotated, Required):
        yield from samples(inner[0], place, given, within)
    elif origin is Literal:
        yield from (Sample(f"{place}={value}", value) for value in inner)
    elif origin in (Union, types.UnionType):
        for each in inner:
            if each is not type(None):
                yield from samples(each, place, given, within)
    elif is_typeddict(kind):
        yield from _objects(kind, place, given, within)
    elif isinstance(origin, type) and issubclass(origin, Mapping):
        yield Sample(place, _of(place, given, {}))
    elif origin is not None:  # Iterable, List and OpenAI's sequence types other than str
        yield from (Sample(each.place, [each.value]) for each in samples(inner[0], f"{place}[]", given, within))
    else:
        yield Sample(place, _of(place, given, SIMPLE[kind]))


def _of(place: str, given: Mapping[str, Any], otherwise: Any) -> Any:
    return next((value for end, value in given.items() if place.endswith(end)), otherwise)


def _origin(kind: Any) -> Any:
    return get_origin(kind)  # this type does not accept Required


def _objects(kind: Any, place: str, given: Mapping[str, Any], within: tuple[Any, ...]) -> Iterator[Sample]:
    fields = get_type_hints(kind, include_extras=True)
    smallest = {
        name: next(samples(field, f"{place}.{name}", given, (*within, kind))).value
        for name, field in fields.items()
        if _origin(field) is Required
    }
    tag = next((str(smallest[name]) for name in TAGS if name in smallest), None)
    own = place if tag is None else f"{place}[{tag}]"
    smallest |= _of(own, given, {})
    yield Sample(own, smallest)
    if kind in within:
        return
    for name, field in fields.items():
        for each in samples(field, f"{own}.{name}", given, (*within, kind)):
            if each.place != f"{own}.{name}" and name not in TAGS:
                yield Sample(each.place, smallest | {name: each.value})


def fields_of(params: Any) -> Mapping[str, Any]:
    """Return the fields of a request's parameters, which may be a union for complete responses and streams."""
    found: dict[str, Any] = {}
    for each in get_args(params) or (params,):
        found |= get_type_hints(each, include_extras=True)
    return found


def is_within(place: str, others: Iterable[str]) -> bool:
    """Return whether a place is one of these, or within one of them."""
    return any(place == each or place.startswith((f"{each}.", f"{each}[", f"{each}=")) for each in others)
