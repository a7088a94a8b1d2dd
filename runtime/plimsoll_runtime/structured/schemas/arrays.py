"""Keywords of arrays."""

from __future__ import annotations

from plimsoll_runtime.structured.schemas.kinds import canonical
from plimsoll_runtime.structured.schemas.site import Schema, Site


def arrays(site: Site) -> None:
    """All of them."""
    if "array" not in site.kinds:
        return
    _items(site)
    for keyword in ("minItems", "maxItems"):
        if site.given.get(keyword) or (keyword == "maxItems" and keyword in site.given):
            site.out[keyword] = int(site.given[keyword])
    _contains(site)
    if site.given.get("uniqueItems") and not _is_short(site):
        site.leave("uniqueItems")


def _items(site: Site) -> None:
    given = site.given
    items, prefix = given.get("items", True), given.get("prefixItems", ())
    name = "items"
    if isinstance(items, list):  # as drafts before 2020 wrote it
        prefix, items = items, given.get("additionalItems", True)
        name = "additionalItems"
    source = "items" if name == "additionalItems" else "prefixItems"
    first = [site.inner(each, source, index) for index, each in enumerate(prefix)]
    if name not in given and "unevaluatedItems" in given:
        name, items = "unevaluatedItems", _unevaluated_items(site)
    rest = site.inner(items, name)
    while first and first[-1] is True and rest is True:
        first.pop()
    if first:
        site.out["prefixItems"] = first
    if rest is not True:
        site.out["items"] = rest


def _unevaluated_items(site: Site) -> Schema:
    """What `items` says that stands for `unevaluatedItems`."""
    given: Schema = site.given["unevaluatedItems"]
    if given is True or given == {}:
        return True
    if site.is_alone("not") and "contains" not in site.given:
        return given
    site.leave("unevaluatedItems")
    return True


def _contains(site: Site) -> None:
    given = site.given.get("contains")
    if given is None:
        return
    least, most = int(site.given.get("minContains", 1)), site.given.get("maxContains")
    if not least and most is None:
        return
    if given is True or given == {} or _are_all(site, given):
        if least:
            site.out["minItems"] = max(least, site.out.get("minItems", 0))
        if most is not None:
            site.out["maxItems"] = min(int(most), site.out.get("maxItems", int(most)))
        return
    site.leave("contains")


def _are_all(site: Site, wanted: Schema) -> bool:
    """Whether each item is one, by what `items` says."""
    items = site.given.get("items")
    return isinstance(items, dict) and "prefixItems" not in site.given and canonical(items) == canonical(wanted)


def _is_short(site: Site) -> bool:
    """Whether there cannot be two items."""
    most = site.out.get("maxItems")
    if site.out.get("items") is False:
        length = len(site.out.get("prefixItems", ()))
        most = length if most is None else min(most, length)
    return most is not None and most <= 1
