"""Keywords that put schemas together."""

from __future__ import annotations

from plimsoll_runtime.structured.schemas.complement import complement
from plimsoll_runtime.structured.schemas.kinds import canonical, kind_of, kinds_of
from plimsoll_runtime.structured.schemas.shapes import SHAPES
from plimsoll_runtime.structured.schemas.site import Schema, Site


def all_of(site: Site) -> None:
    """`allOf`."""
    members = [site.inner(each, "allOf", index) for index, each in enumerate(site.given["allOf"])]
    site.out["allOf"] = [member for member in members if member is not True]


def any_of(site: Site) -> None:
    """`anyOf`."""
    branches = [site.inner(each, "anyOf", index) for index, each in enumerate(site.given["anyOf"])]
    _choose(site, branches)


def one_of(site: Site) -> None:
    """`oneOf`: as `anyOf`, which is the same where no value is of two branches."""
    given = site.given["oneOf"]
    branches = [site.inner(each, "oneOf", index) for index, each in enumerate(given)]
    possible = [each for each, branch in zip(given, branches, strict=True) if branch is not False]
    if len(possible) > 1 and not site.signatures.all_disjoint(possible):
        site.leave("oneOf")
    _choose(site, branches)


def _choose(site: Site, branches: list[Schema]) -> None:
    if True in branches:
        return
    possible = [branch for branch in branches if branch is not False]
    if not possible:
        site.also(False)
    elif "anyOf" in site.out:
        site.also({"anyOf": possible})
    else:
        site.out["anyOf"] = possible


def negation(site: Site) -> None:
    """`not`."""
    given: Schema = site.given["not"]
    if site.signatures.disjoint(site.given, given):
        return
    options = [site.given["const"]] if "const" in site.given else site.given.get("enum")
    refused = _listed(given)
    if options is not None and refused is not None:
        kept = [option for option in options if canonical(option) not in refused]
        site.also({"enum": kept} if kept else False)
        return
    inner = site.exactly(given, "not")
    found = None if inner is None else complement(inner)
    if found is None:
        site.leave("not")
    else:
        site.also(found)


def _listed(schema: Schema) -> frozenset[str] | None:
    """The values of a schema that has a list of them, and nothing else."""
    if isinstance(schema, bool) or not schema.keys() & SHAPES.keys() <= {"const", "enum", "type"}:
        return None
    options = [schema["const"]] if "const" in schema else schema.get("enum")
    if options is None or ("const" in schema and "enum" in schema):
        return None
    kinds = kinds_of(schema.get("type"))
    return frozenset(canonical(option) for option in options if kind_of(option) in kinds)


def condition(site: Site) -> None:
    """`if`, with `then` and `else`."""
    if "if" not in site.given:
        return
    then, otherwise = (site.inner(site.given.get(keyword, True), keyword) for keyword in ("then", "else"))
    if then is True and otherwise is True:
        return
    holds = site.exactly(site.given["if"], "if")
    fails = None if holds is None else complement(holds)
    if fails is None:
        site.leave("if")
        return
    assert holds is not None
    site.also(_either(_both(holds, then), _both(fails, otherwise)))


def _both(one: Schema, two: Schema) -> Schema:
    if one is False or two is False:
        return False
    members = [member for member in (one, two) if member is not True]
    return members[0] if len(members) == 1 else {"allOf": members} if members else True


def _either(one: Schema, two: Schema) -> Schema:
    if one is False or two is False:
        return two if one is False else one
    return True if True in (one, two) else {"anyOf": [one, two]}
