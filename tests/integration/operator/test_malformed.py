"""200 random malformed ModelDeployments: each is rejected with the field's name, or stored with an explanation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from random import Random

import pytest
from operator_support.direct import Direct, Refused
from operator_support.malformed import Malformed, malformed
from operator_support.recording import Operator

from plimsoll_operator.spec.identity import ObjectKey
from plimsoll_operator.status.reasons import Reason

OBJECTS, SEED = 200, 20261121
EXPLAINED = {"refused", Reason.INVALID_SPEC.value, Reason.REJECTED.value}
"""Outcomes whose message must name the problem."""


@pytest.mark.long
async def test_malformed_objects(operator: Operator, direct: Direct) -> None:
    random, outcomes, unclear = Random(SEED), Counter[str](), []
    for number in range(OBJECTS):
        found = malformed(random, f"m{number}")
        refused = refusal(partial(direct.create_model, found.name, found.spec))
        reason, message = ("refused", refused) if refused else await stored(operator, direct, found)
        outcomes[reason] += 1
        if reason in EXPLAINED and not any(word.lower() in message.lower() for word in found.about):
            unclear.append((found.about, reason, message))
    assert unclear == []
    assert outcomes["refused"] > OBJECTS / 3, outcomes
    assert outcomes[Reason.REJECTED] > OBJECTS / 20, outcomes


def refusal(create: Callable[[], object]) -> str:
    """Return the API server's message, "" if it stored the object."""
    try:
        create()
    except Refused as refused:
        if refused.code not in (400, 422):
            raise
        return refused.message or "without a word"
    return ""


async def stored(operator: Operator, direct: Direct, found: Malformed) -> tuple[str, str]:
    """Return reason and message of Ready, which is False (no pods run here) unless no replicas are wanted."""
    await operator.until_quiet(ObjectKey(direct.namespace, found.name))
    item, pods = direct.model(found.name), direct.pods(found.name)
    ready = next(c for c in item["status"]["conditions"] if c["type"] == "Ready")
    assert ready["status"] == str(ready["reason"] == Reason.STOPPED), found
    if ready["reason"] in (Reason.WAITING_FOR_PODS, Reason.STOPPED):
        assert len(pods) == item["spec"]["replicas"], found
    else:
        assert ready["reason"] in EXPLAINED, (found, ready)
        assert not pods
        told = [event[:2] for event in direct.events(found.name)]
        assert told.count(("Warning", ready["reason"])) == 1, (found, told)
    return ready["reason"], ready["message"]


@pytest.mark.matrix(2)
@pytest.mark.parametrize("path", ["spec", "spec.model", "spec.runtime", "spec.template", "spec.resources"])
@pytest.mark.parametrize("value", [None, [], "text", 7, {}], ids=str)
async def test_whole_parts_of_another_type(operator: Operator, direct: Direct, path: str, value: object) -> None:
    body = {"apiVersion": "plimsoll.dev/v1alpha1", "kind": "ModelDeployment", "metadata": {"name": "m"}}
    spec = {"model": {"source": "demo://x"}}
    body["spec"] = value if path == "spec" else {**spec, path.removeprefix("spec."): value}  # type: ignore[assignment]
    refused = refusal(partial(direct.create_object, body))
    if refused:
        assert path in refused
        return
    await operator.until_quiet(ObjectKey(direct.namespace, "m"))
    assert len(direct.pods("m")) == 1
