"""The oldest object that claims a name and may have it owns it; objects that this affects wake."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from operator_support.objects import EPOCH, Json, model

from plimsoll_cluster.served_names.policy import NamePolicy
from plimsoll_cluster.served_names.record import Kept, Record
from plimsoll_cluster.served_names.rules import NameRules, Reserved, Rule
from plimsoll_operator.kube.served_names import NameRegistry
from plimsoll_operator.spec.identity import ObjectKey, key_of
from plimsoll_operator.spec.model_deployment import read_spec, served_names
from plimsoll_operator.status.name_conflicts import NameConflict, describe_conflicts
from plimsoll_operator.status.reasons import Reason

RULES = NameRules([Rule(("a",), ("team",)), Rule(("d*",), ())])
END = datetime(2026, 11, 27, 10, tzinfo=UTC)
SPACES = st.sampled_from(["team", "team", "other"])
KEYS = st.builds(ObjectKey, SPACES, st.sampled_from(["m1", "m2", "m3"]))
NAMES = st.lists(st.sampled_from("abcd"), min_size=1, max_size=3, unique=True)
RECORDS = st.dictionaries(st.sampled_from("abcd"), st.builds(Kept, SPACES, st.sampled_from([None, END])))


def claiming(key: ObjectKey, age: int, names: list[str]) -> Json:
    created = EPOCH - timedelta(seconds=age)
    found = model(key.name, created=created, model={"source": "demo://x", "servedNames": names})
    found["metadata"]["namespace"] = key.namespace
    return found


OBJECTS = st.builds(claiming, KEYS, st.integers(0, 2), NAMES)


def expected(items: dict[ObjectKey, Json], key: ObjectKey, policy: NamePolicy) -> dict[str, Reason]:
    """Return why an object does not own some of its names, computed independently."""
    found = {}
    for name in served_names(items[key]):
        claims = [
            (i["metadata"]["creationTimestamp"], k)
            for k, i in items.items()
            if name in served_names(i) and policy.refusal(name, k.namespace) is None
        ]
        refusal = policy.refusal(name, key.namespace)
        if isinstance(refusal, Reserved):
            found[name] = Reason.SERVED_NAME_RESERVED
        elif claims and min(claims)[1] != key:
            found[name] = Reason.SERVED_NAME_TAKEN
        elif not claims:
            found[name] = Reason.SERVED_NAME_KEPT
    return found


@given(st.lists(OBJECTS | KEYS | RECORDS, max_size=12))
def test_which_object_has_which_name(steps: list[Json | ObjectKey | Record]) -> None:
    registry, items = NameRegistry(NamePolicy(RULES)), dict[ObjectKey, Json]()
    for step in steps:
        before = {key: registry.conflicts(read_spec(item)) for key, item in items.items()}
        changed: ObjectKey | None = None
        if isinstance(step, ObjectKey):
            changed = step
            items.pop(changed, None)
            woken = registry.forget(changed)
        elif "metadata" in step:
            changed = key_of(step)
            items[changed] = step  # type: ignore[assignment]
            woken = registry.note(step)
            assert registry.note(step) == set()
        else:
            woken = registry.use_record(step)
        registry.check_integrity()
        after = {key: registry.conflicts(read_spec(item)) for key, item in items.items()}
        for key, conflicts in after.items():
            assert {conflict.name: conflict.reason for conflict in conflicts} == expected(items, key, registry.policy)
            for name in set(served_names(items[key])) - {conflict.name for conflict in conflicts}:
                assert registry.owner(name) == key
        others = items.keys() & before.keys() - {changed}
        assert {key for key in others if before[key] != after[key]} <= woken <= items.keys() - {changed}


def test_a_condition_names_the_rule_and_says_what_to_do() -> None:
    rules = NameRules([Rule(("llama-*",), ("team-a", "team-b")), Rule(("x",), ()), Rule(("y",), tuple("abcdefg"))])
    registry = NameRegistry(NamePolicy(rules, {"chat": Kept("prod", END), "old": Kept("prod"), "free": Kept("team")}))
    registry.note(claiming(ObjectKey("team", "older"), 9, ["taken"]))
    mine = claiming(ObjectKey("team", "m"), 0, ["chat", "llama-3", "x", "y", "old", "taken", "free"])
    registry.note(mine)
    conflicts = registry.conflicts(read_spec(mine))
    reason, message = describe_conflicts(conflicts)
    assert reason is Reason.SERVED_NAME_KEPT
    assert message == (
        "names are kept for the namespaces that served them: chat for prod until 2026-11-27T10:00:00Z, old for prod; "
        "wait, choose others in spec.model.servedNames, or allow them here in the chart's servedNames.rules. "
        "names are reserved: llama-3 by the rule llama-* (for team-a, team-b), x by the rule x (for no namespace), "
        "y by the rule y (for a, b, c, d, e and 2 more); choose others in spec.model.servedNames, or allow them here "
        "in the chart's servedNames.rules. "
        "names are taken: taken by team/older; choose others in spec.model.servedNames"
    )


@pytest.mark.parametrize("reason", [Reason.SERVED_NAME_TAKEN, Reason.SERVED_NAME_RESERVED, Reason.SERVED_NAME_KEPT])
def test_the_reason_is_that_of_the_first_name(reason: Reason) -> None:
    assert describe_conflicts((NameConflict("x", reason, "why"),))[0] is reason


def test_a_name_that_served_elsewhere_is_not_taken_by_an_older_object() -> None:
    """For example, an older object whose list of names was edited."""
    registry = NameRegistry(NamePolicy(NameRules(), {"chat": Kept("prod")}))
    prod, older = claiming(ObjectKey("prod", "chat"), 0, ["chat"]), claiming(ObjectKey("team", "old"), 9, ["chat"])
    registry.note(prod)
    registry.note(older)
    assert registry.owner("chat") == ObjectKey("prod", "chat")
    assert registry.conflicts(read_spec(prod)) == ()
    assert registry.conflicts(read_spec(older)) == (NameConflict("chat", Reason.SERVED_NAME_TAKEN, "by prod/chat"),)
