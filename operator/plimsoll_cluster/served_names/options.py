"""The options about served names that operator and gateway share."""

from __future__ import annotations

import argparse
import re

from plimsoll_cluster.keys import ObjectKey
from plimsoll_cluster.served_names.rules import Rule

NAME_PATTERN = re.compile(r"\*|[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}\*?")
NAMESPACE_PATTERN = re.compile(r"\*|[a-z0-9][-a-z0-9]{0,62}\*?")


def add_name_options(parser: argparse.ArgumentParser) -> None:
    """The options of operator and gateway: `name_rules` and `name_record` of what is parsed."""
    parser.add_argument(
        "--name-rule",
        type=read_rule,
        action="append",
        default=[],
        dest="name_rules",
        metavar="NAMES=NAMESPACES",
        help="reserve served names for namespaces, both comma separated, each exact or a prefix that ends in *; of "
        "several that match a name the most specific decides (repeatable; default: the oldest claim has a name)",
    )
    parser.add_argument(
        "--name-record",
        type=read_place,
        metavar="NAMESPACE/NAME",
        help="the ConfigMap in which the operator records names that have served traffic; another namespace cannot "
        "claim those (default: none)",
    )


def read_rule(text: str) -> Rule:
    """`NAMES=NAMESPACES`. Raises ArgumentTypeError."""
    names, equals, namespaces = text.partition("=")
    rule = Rule(tuple(names.split(",")), tuple(namespaces.split(",")) if namespaces else ())
    if not equals:
        raise argparse.ArgumentTypeError(f"{text[:256]!r} has no =: write NAMES=NAMESPACES, as in chat,llama-*=team-a")
    for what, pattern, values in (
        ("a served name", NAME_PATTERN, rule.names),
        ("a namespace", NAMESPACE_PATTERN, rule.namespaces),
    ):
        if (wrong := next((value for value in values if pattern.fullmatch(value) is None), None)) is not None:
            raise argparse.ArgumentTypeError(f"{wrong[:256]!r} is not {what}, nor a prefix of one that ends in *")
    return rule


def read_place(text: str) -> ObjectKey:
    """`NAMESPACE/NAME`. Raises ArgumentTypeError."""
    found = re.fullmatch(r"([a-z0-9][-a-z0-9]*)/([a-z0-9][-.a-z0-9]*)", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text[:256]!r} is not NAMESPACE/NAME of a ConfigMap")
    return ObjectKey(found[1], found[2])
