"""Finds the Debian mirror in the host's apt configuration."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from cluster.errors import ClusterError

APT = Path("/etc/apt")
ONE_LINE = re.compile(r"^deb\s+(?:\[[^]]*\]\s+)?(?P<uri>\S+)\s+(?P<suite>\S+)\s+(?P<components>.*)$")


def mirrors_of_list(text: str, suite: str) -> Iterator[str]:
    """Yield the URIs of an apt sources file in one-line format (`deb [options] URI suite component...`) that have the
    suite's component main.
    """
    for line in text.splitlines():
        found = ONE_LINE.match(line.strip())
        if found and found["suite"] == suite and "main" in found["components"].split():
            yield found["uri"]


def mirrors_of_sources(text: str, suite: str) -> Iterator[str]:
    """Yield the URIs of an apt sources file in deb822 format (paragraphs of `Field: value`) that have the suite's
    component main.
    """
    for paragraph in re.split(r"\n\s*\n", text):
        lines = [line for line in paragraph.splitlines() if not line.startswith("#")]
        fields = re.findall(r"^([\w-]+):((?:.*\n?)(?:[ \t].*\n?)*)", "\n".join(lines), re.MULTILINE)
        values = {name.lower(): value.split() for name, value in fields}
        enabled = values.get("enabled", ["yes"])[0].lower() not in ("no", "false")
        if enabled and suite in values.get("suites", ()) and "main" in values.get("components", ()):
            yield from values.get("uris", ())


def find_mirror(suite: str, apt: Path = APT) -> str:
    """Return the URI of the first mirror that the host's apt uses for the suite. Raises ClusterError without one."""
    lists = [apt / "sources.list", *sorted((apt / "sources.list.d").glob("*.list"))]
    for path in lists:
        if path.exists():
            for mirror in mirrors_of_list(path.read_text(), suite):
                return mirror
    for path in sorted((apt / "sources.list.d").glob("*.sources")):
        for mirror in mirrors_of_sources(path.read_text(), suite):
            return mirror
    raise ClusterError(
        f"no Debian {suite} mirror in {apt}/sources.list or {apt}/sources.list.d, which the base image "
        f"is made from: add a `deb ... {suite} main` line"
    )
