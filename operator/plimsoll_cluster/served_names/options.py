"""Command-line options about served names, shared by operator and gateway."""

from __future__ import annotations

import argparse
import re

from plimsoll_cluster.keys import ObjectKey
from plimsoll_cluster.served_names.rules import Rule

NAME_PATTERN = re.compile(r"\*|[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}\*?")
NAMESPACE_PATTERN = re.compile(r"\*|[a-z0-9][-a-z0-9]{0,62}\*?")


def add_name_options(parser: argparse.ArgumentParser) -> None:
    """Add `--name-rule` and `--name-record`; their values are `name_rules` and `name_record`."""
    parser.add_argument(
        "--name-rule",
        type=read_rule,
        action="append",
        default=[],
        dest="name_rules",
        metavar="NAMES=NAMESPACES",
        help="reserve served names for namespaces; both are comma-separated lists of exact names or prefixes that end "
        "in *. If several rules match a name, the most specific one applies (repeatable; default: the oldest "
        "ModelDeployment that claims a name gets it)",
    )
    parser.add_argument(
        "--name-record",
        type=read_place,
        metavar="NAMESPACE/NAME",
        help="the ConfigMap in which the operator records names that have served traffic; other namespaces cannot "
        "claim them (default: none)",
    )


def read_rule(text: str) -> Rule:
    """Parse `NAMES=NAMESPACES`. Raises ArgumentTypeError."""
    names, equals, namespaces = text.partition("=")
    rule = Rule(tuple(names.split(",")), tuple(namespaces.split(",")) if namespaces else ())
    if not equals:
        raise argparse.ArgumentTypeError(f"{text[:256]!r} has no =; write NAMES=NAMESPACES, as in chat,llama-*=team-a")
    for what, pattern, values in (
        ("a served name", NAME_PATTERN, rule.names),
        ("a namespace", NAMESPACE_PATTERN, rule.namespaces),
    ):
        if (wrong := next((value for value in values if pattern.fullmatch(value) is None), None)) is not None:
            raise argparse.ArgumentTypeError(f"{wrong[:256]!r} is not {what} and not a prefix of one that ends in *")
    return rule


def read_place(text: str) -> ObjectKey:
    """Parse `NAMESPACE/NAME`. Raises ArgumentTypeError."""
    found = re.fullmatch(r"([a-z0-9][-a-z0-9]*)/([a-z0-9][-.a-z0-9]*)", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text[:256]!r} is not the NAMESPACE/NAME of a ConfigMap")
    return ObjectKey(found[1], found[2])
