"""Rewrites keywords of single values: types, numbers, texts."""

from __future__ import annotations

import sys
from decimal import Decimal
from typing import Any

from plimsoll_runtime.engine.protocol.constraint import ConstraintError
from plimsoll_runtime.structured.regex_parser import PatternError, parse
from plimsoll_runtime.structured.regex_rust import apart, unsupported, written
from plimsoll_runtime.structured.schemas.context import Site
from plimsoll_runtime.structured.schemas.problems import Place
from plimsoll_runtime.structured.schemas.types import is_exact

FORMATS = frozenset({"date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid"})
"""Enforced formats; others are annotations, as JSON Schema allows."""
_LARGEST = 2**63 - 1
_MOST_DIGITS = 2**32


def types(site: Site) -> None:
    """Rewrite `type` from `site.given` to `site.out`."""
    named = site.given["type"]
    site.out["type"] = named if isinstance(named, str) else list(dict.fromkeys(named))


def options(site: Site) -> None:
    """Rewrite `const` and `enum` from `site.given` to `site.out`."""
    for keyword in ("const", "enum"):
        if keyword not in site.given:
            continue
        if is_exact(site.given[keyword]):
            site.out[keyword] = site.given[keyword]
        else:
            site.leave(keyword)


def bounds(site: Site) -> None:
    """Rewrite the bounds of numbers from `site.given` to `site.out`."""
    if not site.kinds & {"integer", "fraction"}:
        return
    for keyword in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
        given = site.given.get(keyword)
        if given is None or given is False:
            continue
        if given is True:
            given = site.given.get("minimum" if keyword == "exclusiveMinimum" else "maximum")
        found = _bound(given, keyword, site)
        if found is not None:
            site.out[keyword] = found


def _bound(given: Any, keyword: str, site: Site) -> Any:
    """Return a bound that a grammar can enforce; None if all numbers satisfy it, or if it is recorded as unenforced."""
    if given is None or is_exact(given):
        return given
    if abs(given) >= sys.float_info.max and (given > 0) == ("max" in keyword.lower()):
        return None  # all doubles satisfy it
    if "fraction" not in site.kinds and abs(given) >= _LARGEST and (given > 0) == ("max" in keyword.lower()):
        return _LARGEST if given > 0 else -_LARGEST - 1
    site.leave(keyword)
    return None


def multiple(site: Site) -> None:
    """Rewrite `multipleOf` from `site.given` to `site.out`."""
    given = site.given["multipleOf"]
    if not site.kinds & {"integer", "fraction"}:
        return
    digits = Decimal(repr(abs(given))).normalize().as_tuple()
    exponent = int(digits.exponent)
    number = int("".join(map(str, digits.digits))) * 10 ** min(max(exponent, 0), 20)
    if number < _MOST_DIGITS and exponent >= -9:
        site.out["multipleOf"] = abs(given)
    else:
        site.leave("multipleOf")


def texts(site: Site) -> None:
    """Rewrite lengths, pattern and format of texts from `site.given` to `site.out`."""
    if "string" not in site.kinds:
        return
    least, most = site.given.get("minLength"), site.given.get("maxLength")
    if least:
        site.out["minLength"] = int(least)
    if most is not None:
        site.out["maxLength"] = int(most)
    if "pattern" in site.given:
        _pattern(site)
    if site.given.get("format") in FORMATS:
        site.out["format"] = site.given["format"]


def _pattern(site: Site) -> None:
    given, place = site.given["pattern"], site.place.at("pattern")
    problem = pattern_problem(given, place)
    if problem is None:
        site.out["pattern"] = given
        return
    parts = apart(parse(given))
    if any(map(unsupported, parts)):
        site.leave("pattern", problem)
        return
    for part in parts:
        site.also({"pattern": written(part)})


def pattern_problem(pattern: str, place: Place) -> str | None:
    """Return why a pattern cannot be enforced and what to do, or None. Raises ConstraintError for a malformed
    pattern.
    """
    try:
        problem = unsupported(parse(pattern))
    except PatternError as error:
        raise ConstraintError(f"at '{place.shown}': {pattern[:80]!r} is not a regular expression: {error}") from error
    return None if problem is None else f"{problem} cannot be enforced: remove it from the pattern"
