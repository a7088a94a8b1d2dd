"""Rules of served names, and their record as a ConfigMap."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll_cluster.keys import ObjectKey
from plimsoll_cluster.served_names.options import add_name_options, read_rule
from plimsoll_cluster.served_names.policy import FREE, NamePolicy
from plimsoll_cluster.served_names.record import Kept, Record, format_record, parse_record
from plimsoll_cluster.served_names.rules import NameRules, Reserved, Rule

END = datetime(2026, 11, 27, 10, tzinfo=UTC)
NAMES = st.text("abAB01._:/-", min_size=1, max_size=8)
NAMESPACES = st.text("ab-", min_size=1, max_size=3)
PATTERNS = st.builds("{}{}".format, st.text("ab", max_size=3), st.sampled_from(["", "*"])).filter(bool)
RULES = st.lists(
    st.builds(
        Rule,
        st.lists(PATTERNS, min_size=1, max_size=3).map(tuple),
        st.lists(st.sampled_from(["a", "b", "a*", "ab", "*"]), max_size=2).map(tuple),
    ),
    max_size=5,
)
RECORDS = st.dictionaries(NAMES, st.builds(Kept, NAMESPACES, st.sampled_from([None, END])))


def matches(pattern: str, text: str) -> bool:
    return text.startswith(pattern[:-1]) if pattern.endswith("*") else text == pattern


@given(RULES, st.text("ab", min_size=1, max_size=4), st.sampled_from(["a", "b", "ab", "c"]))
def test_the_most_specific_pattern_decides(rules: list[Rule], name: str, namespace: str) -> None:
    found = {pattern for rule in rules for pattern in rule.names if matches(pattern, name)}
    deciding = max(found, key=lambda pattern: (pattern == name, len(pattern)), default=None)
    allowed = [one for rule in rules if deciding in rule.names for one in rule.namespaces]
    refusal = NameRules(rules).refusal(name, namespace)
    assert (refusal is None) is (deciding is None or any(matches(one, namespace) for one in allowed))
    assert refusal is None or (refusal.pattern, set(refusal.namespaces)) == (deciding, set(allowed))


def test_teams_with_prefixes_an_exception_and_nothing_for_the_others() -> None:
    rules = NameRules(
        [Rule(("llama-*", "chat"), ("team-a", "prod-*")), Rule(("llama-guard",), ("safety",)), Rule(("*",), ())]
    )
    assert rules.refusal("llama-3", "team-a") is None
    assert rules.refusal("chat", "prod-eu") is None
    assert rules.refusal("llama-guard", "safety") is None
    assert rules.refusal("llama-guard", "team-a") == Reserved("llama-guard", ("safety",))
    assert rules.refusal("llama-3", "team-ab") == Reserved("llama-*", ("team-a", "prod-*"))
    assert rules.refusal("anything", "team-a") == Reserved("*", ())


@given(RULES, RECORDS, NAMES, NAMESPACES)
def test_the_record_refuses_others_and_never_what_a_rule_gives(
    rules: list[Rule], record: Record, name: str, namespace: str
) -> None:
    policy, ruled = NamePolicy(NameRules(rules), record), NameRules(rules)
    refusal = policy.refusal(name, namespace)
    kept = record.get(name)
    if ruled.refusal(name, namespace) is not None:
        assert isinstance(refusal, Reserved)
    elif kept is not None and kept.namespace != namespace and ruled.refusal(name, kept.namespace) is None:
        assert refusal == kept
    else:
        assert refusal is None
    if kept is not None and refusal is kept:
        assert policy.refusal(name, kept.namespace) is None, "some namespace may use it"


@given(RECORDS, RECORDS)
def test_what_differs_between_two_records(before: Record, after: Record) -> None:
    policy, names = NamePolicy(record=before).with_record(after)
    assert policy.record == after
    assert names == {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}


def test_without_rules_and_record_nothing_is_refused() -> None:
    assert FREE.refusal("any", "where") is None


@given(RECORDS)
def test_a_record_is_read_as_it_was_written(record: Record) -> None:
    data = format_record(record)
    assert parse_record(data) == record
    assert format_record(parse_record(data)) == data
    assert set(data) == {kept.namespace for kept in record.values()}


def test_a_record_that_people_can_read_and_edit() -> None:
    data = {"prod": "chat\norg/llama:8b 2026-11-27T10:00:00Z\n", "team-b": "sneak\n"}
    record = {"chat": Kept("prod"), "org/llama:8b": Kept("prod", END), "sneak": Kept("team-b")}
    assert parse_record(data) == record
    assert format_record(record) == data
    edited = {"prod": "\n  chat   \nx tomorrow\n", "team-b": "chat\ny"}
    assert parse_record(edited) == {"chat": Kept("prod"), "x": Kept("prod"), "y": Kept("team-b")}


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_name_options(parser)
    return parser.parse_args(words)


def test_options() -> None:
    found = parsed("--name-rule=llama-*,org/x:8b=team-a,prod-*", "--name-rule=*=", "--name-record=serving/names")
    assert found.name_rules == [Rule(("llama-*", "org/x:8b"), ("team-a", "prod-*")), Rule(("*",), ())]
    assert found.name_record == ObjectKey("serving", "names")
    assert (parsed().name_rules, parsed().name_record) == ([], None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("chat", "'chat' has no =; write NAMES=NAMESPACES"),
        ("=team-a", "'' is not a served name"),
        ("a b=team-a", "'a b' is not a served name and not a prefix of one that ends in *"),
        ("a*b=team-a", r"'a\*b' is not a served name"),
        ("a,,b=team-a", "'' is not a served name"),
        ("a=Team", "'Team' is not a namespace"),
        ("a=team,", "'' is not a namespace"),
        ("x" * 129 + "=team", "is not a served name"),
    ],
)
def test_a_rule_that_makes_no_sense(text: str, message: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=message):
        read_rule(text)


def test_a_record_without_a_namespace() -> None:
    with pytest.raises(argparse.ArgumentError, match="'names' is not the NAMESPACE/NAME of a ConfigMap"):
        parsed("--name-record=names")
