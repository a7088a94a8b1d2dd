"""Profiles and defaults on a real API server: the pods that are created with them, and their replacement after a
change.
"""

from __future__ import annotations

from operator_support.direct import Direct
from operator_support.objects import Json
from operator_support.recording import Operator, RecordingClient

from plimsoll_operator.planning.upgrade_queue import UpgradeQueue
from plimsoll_operator.spec.identity import ObjectKey
from plimsoll_operator.spec.profiles import Profile, Profiles
from plimsoll_operator.spec.template import Accelerator, Template

L4 = Profile(
    cpu="2",
    memory="16Gi",
    accelerator=Accelerator("nvidia.com/gpu", 1),
    template=Template(
        tolerations=({"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},),
        scheduling={"nodeSelector": {"gpu": "l4"}},
    ),
)
DEFAULTS = Template(env=({"name": "HTTPS_PROXY", "value": "http://proxy:3128"},))


def ask(direct: Direct, name: str, profile: str = "l4") -> ObjectKey:
    direct.create_model(name, {"model": {"source": "demo://gemma-3-270m"}, "resources": {"profile": profile}})
    return ObjectKey(direct.namespace, name)


def condition(direct: Direct, name: str, kind: str) -> Json:
    (found,) = [c for c in direct.model(name)["status"]["conditions"] if c["type"] == kind]
    return dict(found)


async def settle(operator: Operator, direct: Direct, key: ObjectKey) -> None:
    """Alternate reconciles and kubelets until all pods have the present settings of the installation."""
    for _ in range(12):
        await operator.until_quiet(key)
        direct.make_ready(key.name)
        await operator.until_quiet(key)
        if condition(direct, key.name, "Progressing")["reason"] == "Settled":
            return
    raise AssertionError(direct.model(key.name)["status"])


async def test_a_model_with_a_profile_is_made_and_a_change_of_the_profile_waits_for_its_turn(
    http: RecordingClient, direct: Direct
) -> None:
    keys = [ask(direct, "a"), ask(direct, "b")]
    before = Operator(http, profiles=Profiles(DEFAULTS, {"l4": L4}))
    for key in keys:
        await settle(before, direct, key)
    (pod,) = direct.pods("a")
    (container,) = pod["spec"]["containers"]
    assert container["resources"]["limits"] == {"memory": "16Gi", "nvidia.com/gpu": "1"}
    assert {"name": "HTTPS_PROXY", "value": "http://proxy:3128"} in container["env"]
    assert pod["spec"]["nodeSelector"] == {"gpu": "l4"}

    after = Operator(http, profiles=Profiles(Template(), {"l4": L4}), upgrades=UpgradeQueue(1))
    for key in keys:
        await after.until_quiet(key)
    made = {key.name: [p["metadata"]["name"] for p in direct.pods(key.name)] for key in keys}
    assert [len(pods) for pods in made.values()] == [2, 1], "one model at a time"
    assert condition(direct, "b", "Progressing")["reason"] == "RolloutQueued"
    for key in keys:
        await settle(after, direct, key)
    for key in keys:
        (pod,) = [p for p in direct.pods(key.name) if "deletionTimestamp" not in p["metadata"]]
        assert "HTTPS_PROXY" not in str(pod["spec"]["containers"][0]["env"])


async def test_a_profile_that_is_not_there_is_told_with_those_that_are(http: RecordingClient, direct: Direct) -> None:
    key = ask(direct, "m", "a100")
    await Operator(http, profiles=Profiles(named={"l4": L4, "cpu": Profile()})).until_quiet(key)
    stalled = condition(direct, "m", "Stalled")
    assert (stalled["status"], stalled["reason"]) == ("True", "InvalidSpec")
    assert "resources.profile a100 is not a profile of this installation (cpu, l4)" in stalled["message"]
    assert direct.pods("m") == []
    await settle(Operator(http, profiles=Profiles(named={"a100": L4})), direct, key)
