"""Placing, moving and sleeping models, with events, by whole processes over a server and stub hosts."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from operator_support.pooled import POOL, Process, World, run
from operator_support.server import NAMESPACE
from prometheus_client import REGISTRY

from plimsoll_operator.build.image import Image
from plimsoll_operator.planning.nodes import Node
from plimsoll_operator.pools.pool_controller import PLACEMENT
from plimsoll_operator.spec.identity import HOST_KIND, KIND, POOL_KIND, ObjectKey
from plimsoll_operator.status.reasons import Reason


def where(world: World) -> dict[str, set[str]]:
    """Return the pods whose hosts have each model."""
    found: dict[str, set[str]] = {}
    for name, host in world.hosts.items():
        for model in host.models:
            found.setdefault(model.name, set()).add(name)
    return found


def conditions(world: World, name: str) -> dict[str, tuple[str, str]]:
    status = world.server.objects[KIND][name]["status"]
    return {c["type"]: (c["status"], c["reason"]) for c in status["conditions"]}


def status_of(world: World, name: str) -> dict[str, Any]:
    found: dict[str, Any] = world.server.objects[KIND][name]["status"]
    return found


def settled(replicas: int = 2, models: int = 3) -> tuple[World, Process]:
    world = World()
    world.ask_for_pool(replicas)
    for number in range(models):
        world.ask_for(f"m{number}")
    process = Process(world)
    run(process.settle())
    return world, process


def test_every_model_is_placed_once_and_said_where() -> None:
    world, process = settled()
    assert len(world.hosts) == 2
    assert {name: len(hosts) for name, hosts in where(world).items()} == {"m0": 1, "m1": 1, "m2": 1}
    assert Counter(model.name for host in world.hosts.values() for model in host.loads) == {"m0": 1, "m1": 1, "m2": 1}
    for name, hosts in where(world).items():
        status = status_of(world, name)
        assert [placement["host"] for placement in status["placements"]] == list(hosts)
        assert status["where"].split()[0] in hosts
        assert conditions(world, name)["Ready"][0] == "True"
        assert conditions(world, name)["Placed"] == ("True", "Placed")
        assert conditions(world, name)["Progressing"] == ("False", "Settled")
    placed = [name for name, reason, _ in process.api.events if reason == "Placed"]
    assert set(placed) == {"m0", "m1", "m2"}


def test_settled_costs_no_write() -> None:
    _, process = settled()
    before = len(process.api.asked)
    run(process.settle())
    assert process.api.asked[before:] == []


def test_the_age_of_the_oldest_report_is_measured() -> None:
    world, process = settled()
    run(process.poll())
    world.now += 7
    ages = "plimsoll_operator_report_age_seconds_sum"
    before = REGISTRY.get_sample_value(ages) or 0.0
    run(process.one_pass(POOL.of(PLACEMENT)))
    assert (REGISTRY.get_sample_value(ages) or 0.0) - before == 7.0


def test_a_modelhost_shows_what_its_pod_has_and_belongs_to_it() -> None:
    world, _ = settled()
    assert set(world.server.objects[HOST_KIND]) == set(world.hosts)
    for name, item in world.server.objects[HOST_KIND].items():
        pod = world.server.objects["Pod"][name]
        assert item["metadata"]["ownerReferences"][0]["uid"] == pod["metadata"]["uid"]
        status = item["status"]
        assert [entry["name"] for entry in status["models"]] == sorted(m.name for m in world.hosts[name].models)
        assert status["load"].endswith("of 0.9Gi")
        assert [(c["type"], c["status"]) for c in status["conditions"]] == [("Reporting", "True")]


def test_a_model_that_sleeps_is_ready() -> None:
    world, process = settled(replicas=1, models=1)
    (host,) = world.hosts.values()
    key = ObjectKey(NAMESPACE, "m0")
    host.models[key].state = "InHost"
    host.decide(key, "Asleep", "idle for 12 min")
    run(process.settle())
    assert conditions(world, "m0")["Ready"] == ("True", "Asleep")
    assert conditions(world, "m0")["Loaded"] == ("False", "Asleep")
    assert conditions(world, "m0")["Routable"] == ("True", "Asleep")
    assert status_of(world, "m0")["phase"] == "Asleep"
    asleep = [note for _, reason, note in process.api.events if reason == "Asleep" and "12 min" in note]
    assert len(asleep) == 1, "a decision of the host is one event"
    host.use(key)
    run(process.settle())
    assert conditions(world, "m0")["Ready"] == ("True", "Ready")
    assert conditions(world, "m0")["Loaded"] == ("True", "Loaded")
    assert [reason for _, reason, _ in process.api.events if reason == "Woken"] == ["Woken"]


def test_a_model_that_drains_to_sleep_stays_ready_and_one_that_drains_to_go_answers_no_more() -> None:
    world, process = settled(replicas=1, models=1)
    (host,) = world.hosts.values()
    key = ObjectKey(NAMESPACE, "m0")
    host.models[key].state = "Draining"
    host.decide(key, "Evicted", "value 0.8 against 3.1")
    run(process.settle())
    assert conditions(world, "m0")["Ready"] == ("True", "Ready")
    assert conditions(world, "m0")["Routable"] == ("True", "Routable")
    assert conditions(world, "m0")["Progressing"] == ("True", "Loading")
    assert status_of(world, "m0")["readyReplicas"] == 1
    host.models[key].state = "Resident"
    world.ask_for("m0", replicas=0)
    process.hear()
    for _ in range(2):
        run(process.poll())
        run(process.one_pass(POOL.of("Placement")))
        run(process.one_pass(key.of(KIND)))
    assert host.models[key].state == "Draining"
    assert status_of(world, "m0")["readyReplicas"] == 0


def test_another_process_tells_no_decision_twice() -> None:
    world, process = settled(replicas=1, models=1)
    (host,) = world.hosts.values()
    host.decide(ObjectKey(NAMESPACE, "m0"), "Evicted", "value 0.8 against 3.1")
    run(process.settle())
    assert [reason for _, reason, _ in process.api.events if reason == "Evicted"] == ["Evicted"]
    other = Process(world)
    run(other.settle())
    assert [event for event in other.api.events if event[1] == "Evicted"] == []


def test_a_decision_is_told_once_though_no_modelhost_says_so_yet_and_that_of_another_instance_again() -> None:
    world, process = settled(replicas=1, models=1)
    (host,) = world.hosts.values()
    key = ObjectKey(NAMESPACE, "m0")
    for number in range(3):
        host.decide(key, "Evicted", f"value 0.{number} against 3.1")
        run(process.poll())
    told = [word.why.partition(": ")[2] for word in process.pools.placer.untold(key)]
    assert told == ["value 0.0 against 3.1", "value 0.1 against 3.1", "value 0.2 against 3.1"]
    host.restart("another")
    host.decide(key, "Evicted", "value 0.3 against 3.1")
    run(process.poll())
    assert [word.why.partition(": ")[2] for word in process.pools.placer.untold(key)] == ["value 0.3 against 3.1"]


def test_a_pool_that_there_is_not() -> None:
    world, key = World(), ObjectKey(NAMESPACE, "m").of(KIND)
    world.ask_for("m")
    process = Process(world)
    result = run(process.one_pass(key))
    assert "status" not in world.server.objects[KIND]["m"], "its watch may be later"
    world.now += result.again.total_seconds()
    run(process.one_pass(key))
    assert conditions(world, "m")["Placed"] == ("False", "PoolNotFound")
    assert conditions(world, "m")["Ready"] == ("False", "PoolNotFound")
    world.ask_for_pool(1)
    run(Process(world).settle())
    assert conditions(world, "m")["Ready"][0] == "True"


def test_a_pool_that_comes_with_its_models_is_never_missing() -> None:
    """One file may contain both, and the watch of the models may be first."""
    world = World()
    world.ask_for("m")
    process = Process(world)
    run(process.one_pass(ObjectKey(NAMESPACE, "m").of(KIND)))
    world.ask_for_pool(1)
    process.hear()
    run(process.settle())
    assert conditions(world, "m")["Ready"][0] == "True"
    assert [event for event in process.api.events if "PoolNotFound" in event] == []
    world.server.remove(POOL_KIND, "shared")
    process.hear()
    run(process.one_pass(ObjectKey(NAMESPACE, "m").of(KIND)))
    assert conditions(world, "m")["Ready"][0] == "True", "it may be made again in a moment"


def test_a_host_that_restarts_is_waited_for_and_nothing_is_refused() -> None:
    world, process = settled(replicas=1, models=1)
    ((name, host),) = world.hosts.items()
    note = next(note for _, reason, note in process.api.events if reason == "Placed")
    assert note == f"on {name}: no host has it yet"

    def ready(status: str) -> None:
        condition = [{"type": "Ready", "status": status}]
        world.server.change("Pod", name, lambda pod: pod["status"].update(conditions=condition))
        process.hear()

    ready("False")
    host.restart("another")
    world.ask_for("new")
    process.hear()
    run(process.settle())
    for model in ("m0", "new"):
        placed = next(c for c in status_of(world, model)["conditions"] if c["type"] == "Placed")
        assert (placed["status"], placed["reason"]) == ("False", "Placing")
        assert (
            placed["message"]
            == f"it is on 0 of 1 hosts of RuntimePool shared; it waits for hosts: {name} (it is not ready)"
        )
    assert [event for event in process.api.events if event[1] in ("NoRoom", "Refused")] == []
    ready("True")
    run(process.settle())
    assert conditions(world, "m0")["Ready"][0] == conditions(world, "new")["Ready"][0] == "True"


def test_hosts_under_full_pressure_refuse_by_name() -> None:
    world, process = settled(replicas=1, models=1)
    ((name, host),) = world.hosts.items()
    host.lie = lambda report: report | {"device": {**report["device"], "pressure": "full"}}
    world.ask_for("new")
    process.hear()
    run(process.settle())
    placed = next(c for c in status_of(world, "new")["conditions"] if c["type"] == "Placed")
    assert (placed["status"], placed["reason"]) == ("False", "NoRoom")
    assert placed["message"].endswith(f": none of the 1 hosts can take it: {name} (its memory is under full pressure)")


def test_a_pool_that_cannot_be_used() -> None:
    """For example, one that an API server without the CRD's rules has stored."""
    world = World()
    world.ask_for("m")
    world.ask_for_pool(1, memory={"sleepers": "2Gi"})
    run(Process(world).settle())
    placed = next(c for c in status_of(world, "m")["conditions"] if c["type"] == "Placed")
    assert placed["reason"] == "InvalidSpec"
    assert "RuntimePool shared cannot be used: memory.sleepers 2Gi leaves nothing" in placed["message"]
    assert world.hosts == {}


def test_hosts_of_a_pool_whose_image_is_allowed_no_more_answer_for_their_models() -> None:
    world = World()
    world.ask_for_pool(1, template={"image": "registry.example/runtime:1"})
    world.ask_for("m")
    run(Process(world, image=Image("runtime:1", allowed=("registry.example",))).settle())
    after = Process(world)
    world.ask_for("late")
    run(after.settle())
    (pool,) = world.server.objects[POOL_KIND].values()
    told = {c["type"]: c["reason"] for c in pool["status"]["conditions"]}
    assert told["Progressing"] == "InvalidSpec"
    for name in ("m", "late"):
        assert conditions(world, name)["Ready"][0] == "True"
        assert status_of(world, name)["readyReplicas"] == 1
    (host,) = world.hosts.values()
    host.models[ObjectKey(NAMESPACE, "m")].state = "InHost"
    host.sequence += 1
    run(after.settle())
    assert conditions(world, "m")["Ready"] == ("True", "Asleep")


def test_an_edit_that_cannot_be_used_leaves_a_model_ready_where_it_is() -> None:
    world, process = settled(replicas=1, models=1)
    before = dict(status_of(world, "m0"))
    world.ask_for("m0", placement={"pool": POOL.name}, template={"image": "elsewhere.example/runtime:1"})
    for _ in range(2):
        run(process.settle())
        after = status_of(world, "m0")
        assert conditions(world, "m0")["Ready"] == ("True", "Ready")
        assert conditions(world, "m0")["Stalled"] == ("True", "InvalidSpec")
        kept = ("placements", "where", "readyReplicas", "replicas", "servedNames", "desiredReplicas")
        assert {name: after[name] for name in kept} == {name: before[name] for name in kept}
        assert after["phase"] == "Degraded"
        process = Process(world)
    (host,) = world.hosts.values()
    host.models.clear()
    host.sequence += 1
    host.refusals["m0"] = "no room"
    run(process.settle())
    assert conditions(world, "m0")["Ready"] == ("False", "InvalidSpec"), "no host answers any more"
    assert status_of(world, "m0")["phase"] == "Failed"


def test_files_that_cannot_be_fetched_are_told_and_hold_up_no_drain() -> None:
    world, process = settled(replicas=1, models=1)
    (host,) = world.hosts.values()
    key = ObjectKey(NAMESPACE, "m0")

    def fail(_: Any = None) -> None:
        host.models[key].state, host.models[key].error = "Absent", "401 for demo://x"
        host.models[key].wish = ""
        host.sequence += 1

    host.proceed = fail  # type: ignore[method-assign]
    for _ in range(4):
        fail()
        world.now += 61
        process.queue.add(POOL.of(PLACEMENT))
        run(process.turn())
        process.hear()
    fail()
    run(process.turn())
    assert len(host.loads) > 2, "it is tried again"
    placed = [note for _, reason, note in process.api.events if reason == "Placed" and "Placed is" not in note]
    assert len(placed) == 1, "another try is no news"
    assert conditions(world, "m0")["Loaded"] == ("False", "LoadFailed")
    assert "401 for demo://x" in str(status_of(world, "m0")["conditions"])
    world.ask_for_pool(0)
    for _ in range(3):
        process.hear()
        process.queue.add(POOL.of(POOL_KIND))
        run(process.turn())
    assert all("deletionTimestamp" in pod["metadata"] for pod in world.server.objects["Pod"].values())


def test_a_pool_counts_the_models_that_its_hosts_have_each_once_and_none_that_is_not_there() -> None:
    world, process = settled(replicas=2, models=3)
    world.ask_for("m0", replicas=2)
    process.hear()
    run(process.settle())
    assert world.server.objects[POOL_KIND][POOL.name]["status"]["models"] == 3
    (host,) = [host for host in world.hosts.values() if ObjectKey(NAMESPACE, "m1") in host.models]
    host.models[ObjectKey(NAMESPACE, "m1")].state = "Absent"
    host.sequence += 1
    run(process.poll())
    run(process.one_pass(POOL.of(POOL_KIND)))
    assert world.server.objects[POOL_KIND][POOL.name]["status"]["models"] == 2


def test_conditions_stay_as_they_are_while_the_same_fetch_fails_again_and_again() -> None:
    world, process = settled(replicas=1, models=1)
    (host,) = world.hosts.values()
    key = ObjectKey(NAMESPACE, "m0")
    host.proceed = lambda: None  # type: ignore[method-assign]
    host.models[key].state = "Absent"
    seen, states = [], []
    for _ in range(3):
        host.models[key].state, host.models[key].error, host.models[key].wish = "Absent", "401 for demo://x", ""
        host.sequence += 1
        for _ in range(2):  # First its failure is seen, then the next try.
            world.now += 61
            process.queue.add(POOL.of(PLACEMENT))
            run(process.turn())
            process.hear()
            states.append(host.models[key].state)
            seen.append(status_of(world, "m0"))
    assert states == ["Fetching"] * 6
    assert {status["placements"][0]["state"] for status in seen} == {"Placing", "Fetching"}
    first, *others = [{name: s[name] for name in ("conditions", "phase", "updatedReplicas")} for s in seen]
    assert [other for other in others if other != first] == []
    assert conditions(world, "m0")["Placed"] == ("False", "Placing")
    assert conditions(world, "m0")["Loaded"] == ("False", "LoadFailed")
    host.become(key, "Resident", "at last")
    run(process.turn())
    assert conditions(world, "m0")["Placed"] == ("True", "Placed")
    assert conditions(world, "m0")["Loaded"] == ("True", "Loaded")


def test_a_drain_ends_though_no_modelhost_can_be_written() -> None:
    world, process = settled(replicas=1, models=1)
    world.ask_for_pool(0)
    process.hear()
    for seconds, going in ((0, False), (599, False), (2, True)):
        world.now += seconds
        run(process.one_pass(POOL.of(POOL_KIND)))
        assert [("deletionTimestamp" in pod["metadata"]) for pod in world.server.objects["Pod"].values()] == [going]


def test_pinned_models_that_together_exceed_the_line() -> None:
    world = World()
    world.ask_for_pool(1)
    process = Process(world)
    run(process.settle())
    (host,) = world.hosts.values()
    host.size = 500 * 2**20
    for name in ("a", "b", "c"):
        world.ask_for(name, placement={"pool": "shared", "pinned": True})
        process.hear()
        run(process.settle())
    told = {name: dict(conditions(world, name)) for name in ("a", "b", "c")}
    refused = [name for name, found in told.items() if found["Progressing"] == ("True", "Failing")]
    assert refused
    for name in refused:
        message = next(c["message"] for c in status_of(world, name)["conditions"] if c["type"] == "Progressing")
        assert "pinned" in message
        assert "MiB" in message or "GiB" in message, "with the numbers"


def test_what_a_host_refuses_is_told_with_its_numbers() -> None:
    world = World()
    world.ask_for_pool(1)
    process = Process(world)
    run(process.settle())
    (host,) = world.hosts.values()
    host.refusals["m"] = "m needs 9000 MiB and the line is at 921 MiB"
    world.ask_for("m")
    process.hear()
    run(process.settle())
    placed = next(c for c in status_of(world, "m")["conditions"] if c["type"] == "Placed")
    assert (placed["status"], placed["reason"]) == ("False", "NoRoom")
    assert "9000 MiB" in placed["message"]
    assert [reason for _, reason, _ in process.api.events].count("Refused") == 1
    host.refusals.clear()
    world.now += 60
    run(process.settle())
    assert conditions(world, "m")["Ready"][0] == "True"


@pytest.mark.parametrize(
    ("backend", "accelerator", "words"),
    [
        ("triton", False, "runtime.attentionBackend triton needs an accelerator, and RuntimePool team/shared has none"),
        ("flash-attn", False, "name a pool with resources.accelerator"),
        ("cpu", True, "runtime.attentionBackend cpu is for CPUs, and RuntimePool team/shared has nvidia.com/gpu"),
        ("triton", True, ""),
        ("torch", False, ""),
        ("cpu", False, ""),
    ],
)
def test_what_the_accelerator_allows_is_checked_against_the_pool(backend: str, accelerator: bool, words: str) -> None:
    world = World()
    resources = {"memory": "2Gi"} | ({"accelerator": {"resource": "nvidia.com/gpu"}} if accelerator else {})
    world.ask_for_pool(1, resources=resources)
    world.ask_for("m", runtime={"attentionBackend": backend})
    run(Process(world).settle())
    placed = next(c for c in status_of(world, "m")["conditions"] if c["type"] == "Placed")
    assert placed["reason"] == ("InvalidOptions" if words else "Placed")
    assert words in placed["message"]


def test_a_pool_runs_no_code_that_comes_with_a_model() -> None:
    """The CRD rejects it as well, but not for objects stored before."""
    world = World()
    world.ask_for_pool(1)
    world.ask_for("m", model={"source": "hf://org/m", "trustRemoteCode": True})
    run(Process(world).settle())
    placed = next(c for c in status_of(world, "m")["conditions"] if c["type"] == "Placed")
    assert placed["reason"] == "InvalidOptions"
    assert "RuntimePool team/shared runs no code from a model's repository" in placed["message"]
    assert not any(host.models for host in world.hosts.values())


def test_a_model_that_is_larger_than_any_host_is_told_with_both_numbers() -> None:
    world = World()
    world.ask_for_pool(1)
    world.ask_for("m", runtime={"kvMemory": "4Gi"})
    run(Process(world).settle())
    placed = next(c for c in status_of(world, "m")["conditions"] if c["type"] == "Placed")
    assert (placed["status"], placed["reason"]) == ("False", "TooLarge")
    assert "it needs 4.00 GiB" in placed["message"]
    assert "the largest host has 922 MiB for models: lower runtime.kvMemory" in placed["message"]
    assert where(world) == {}


def refused(reason: str) -> float | None:
    labels = {"namespace": POOL.namespace, "pool": POOL.name, "reason": reason}
    return REGISTRY.get_sample_value("plimsoll_operator_refused_placements", labels)


def test_models_that_the_plan_refuses_are_counted_until_the_pool_is_gone() -> None:
    world = World()
    world.ask_for_pool(1)
    world.ask_for("m", runtime={"kvMemory": "4Gi"})
    process = Process(world)
    run(process.settle())
    assert (refused("TooLarge"), refused("NoRoom")) == (1, 0)
    world.server.remove(POOL_KIND, POOL.name)
    run(process.settle())
    assert (refused("TooLarge"), refused("NoRoom")) == (None, None)


def test_a_claim_that_the_pool_does_not_mount_is_told_with_the_line_to_add() -> None:
    world = World()
    world.ask_for_pool(1)
    world.ask_for("m", model={"source": "pvc://weights/llama"})
    run(Process(world).settle())
    placed = next(c for c in status_of(world, "m")["conditions"] if c["type"] == "Placed")
    assert placed["reason"] == "ClaimNotMounted"
    line = "{name: weights, persistentVolumeClaim: {claimName: weights}}"
    assert line in placed["message"]
    volume = {"name": "weights", "persistentVolumeClaim": {"claimName": "weights"}}
    world.ask_for_pool(1, template={"volumes": [volume]})
    run(Process(world).settle())
    assert conditions(world, "m")["Ready"][0] == "True"
    (host,) = world.hosts.values()
    assert [model.spec["source"] for model in host.models.values()] == ["file:///models/weights/llama"]


def test_a_model_that_goes_is_unloaded_and_one_that_is_stopped_too() -> None:
    world, process = settled(replicas=1, models=2)
    world.delete("m0")
    world.ask_for("m1", replicas=0)
    process.hear()
    run(process.settle())
    assert where(world) == {}
    assert conditions(world, "m1")["Ready"] == ("True", "Stopped")


def test_scaling_down_moves_the_models_first() -> None:
    world, process = settled(replicas=2, models=4)
    before = set(world.hosts)
    world.ask_for_pool(1)
    process.hear()
    served: list[int] = []
    for _ in range(40):
        run(process.turn())
        served.append(len(where(world)))
        world.proceed()
        process.hear()
        world.now += 1
        process.queue.add(POOL.of("RuntimePool"))
        process.queue.add(POOL.of("Placement"))
    assert min(served) == 4, "each model was on some host all the time"
    assert len(world.hosts) == 1
    assert set(world.hosts) < before
    assert all(len(hosts) == 1 for hosts in where(world).values())


def test_nothing_is_remembered_of_models_and_pools_that_are_gone() -> None:
    """In each round, models are moved, evicted, rejected, and then deleted or given dedicated pods."""
    world = World()
    process = Process(world)
    placer = process.pools.placer
    for number in range(5):
        names = [f"m{number}-{letter}" for letter in "abcd"]
        world.ask_for_pool(2)
        for name in names:
            world.ask_for(name)
        process.hear()
        run(process.settle())
        world.ask_for_pool(1)
        process.hear()
        run(process.settle())
        (host,) = world.hosts.values()
        assert placer._pools[POOL].moved
        for name in names:
            host.decide(ObjectKey(NAMESPACE, name), "Evicted", "value 0.8 against 3.1")
        run(process.poll())
        assert len(placer._told) == len(names)
        for name in names[:2]:
            world.delete(name)
        for name in names[2:]:
            world.ask_for(name, placement=None)
        process.hear()
        for name in names:  # hosts speak of them still
            host.decide(ObjectKey(NAMESPACE, name), "Evicted", "value 0.7 against 3.1")
        run(process.settle())
        placer.tell(
            ObjectKey(NAMESPACE, names[0]), Reason.REFUSED, "a host rejects late requests for the deleted model"
        )
        assert placer._told == {}
        pool = placer._pools[POOL]
        assert [pool.moved, pool.asked, pool.refused, pool.waiting, pool.sizes, pool.problems, pool.held] == [{}] * 7
    world.server.remove(POOL_KIND, POOL.name)
    process.hear()
    run(process.turn())
    assert placer._pools == {}


def answers(world: World) -> bool:
    """Return whether a pod or a host would serve a request for the model m."""
    own = [
        pod
        for pod in world.server.objects["Pod"].values()
        if pod["metadata"]["labels"]["plimsoll.dev/role"] == "serve"
        and pod["status"].get("conditions")
        and "deletionTimestamp" not in pod["metadata"]
    ]
    kept = [model for host in world.hosts.values() for model in host.models.values() if model.wish != "gone"]
    return bool(own) or any(model.state in ("Resident", "InHost", "OnDisk") for model in kept)


def moved(world: World, process: Process, **spec: Any) -> list[bool]:
    """Change the spec, and return whether the model was served at all times."""
    world.ask_for("m", **spec)
    process.hear()
    found: list[bool] = []
    for _ in range(20):
        run(process.turn())
        found.append(answers(world))
        world.proceed()
        process.hear()
        found.append(answers(world))
        process.queue.add(POOL.of("Placement"))
        process.queue.add(POOL.of("RuntimePool"))
    return found


def test_own_pods_go_once_the_pool_answers_and_come_back_before_it_lets_go() -> None:
    world = World()
    world.ask_for("m", placement=None)
    process = Process(world)
    run(process.settle())
    roles = [pod["metadata"]["labels"]["plimsoll.dev/role"] for pod in world.server.objects["Pod"].values()]
    assert roles == ["serve"]
    world.ask_for_pool(1)
    process.hear()
    assert all(moved(world, process))
    roles = [pod["metadata"]["labels"]["plimsoll.dev/role"] for pod in world.server.objects["Pod"].values()]
    assert roles == ["host"]
    assert where(world).keys() == {"m"}
    assert all(moved(world, process, placement=None))
    run(process.settle())
    assert where(world) == {}
    assert conditions(world, "m")["Ready"] == ("True", "Ready")


def test_what_was_taken_away_can_be_placed_again() -> None:
    """The same action on the same host has another operation ID after a change in between."""
    world, process = settled(replicas=1, models=1)
    for replicas in (0, 1):
        world.ask_for("m0", replicas=replicas)
        process.hear()
        run(process.settle())
        assert len(where(world)) == replicas
    (host,) = world.hosts.values()
    assert len(host.loads) == 2


def test_a_process_waits_until_every_host_that_runs_has_been_asked() -> None:
    """Otherwise it would load models a second time that a host without a report and a ModelHost has."""
    world, _ = settled(replicas=2, models=1)
    for name in list(world.server.objects[HOST_KIND]):
        world.server.remove(HOST_KIND, name)
    process = Process(world)
    ((holder,),) = where(world).values()
    run(process.one_pass(POOL.of("RuntimePool")))
    for known in process.pools.registry:
        if known.pod.name != holder:
            process.pools.registry.take(known.pod.uid, world.hosts[known.pod.name].report(), world.hosts[holder].now)
    run(process.one_pass(POOL.of("Placement")))
    assert sum(len(host.loads) for host in world.hosts.values()) == 1


def test_models_of_a_new_pool_wait_for_its_second_host_and_lie_on_both() -> None:
    world = World()
    world.starts = 1
    world.ask_for_pool(2)
    for number in range(8):
        world.ask_for(f"m{number}")
    process = Process(world)
    run(process.settle())
    assert len(world.hosts) == 1
    assert where(world) == {}
    (late,) = set(world.server.objects["Pod"]) - set(world.hosts)
    placed = next(c for c in status_of(world, "m0")["conditions"] if c["type"] == "Placed")
    assert (placed["status"], placed["reason"]) == ("False", "Placing")
    assert placed["message"].endswith(f"; waiting up to 10 s for starting hosts: {late}")
    world.starts = 2
    run(process.settle())
    assert Counter(next(iter(hosts)) for hosts in where(world).values()) == dict.fromkeys(world.hosts, 4)
    assert sum(len(host.loads) for host in world.hosts.values()) == 8, "each once, none moved"
    assert conditions(world, "m0")["Ready"][0] == "True"


def test_a_second_host_is_waited_for_no_longer_than_ten_seconds() -> None:
    world = World()
    world.starts = 1
    world.ask_for_pool(2)
    world.ask_for("m")
    process = Process(world)
    run(process.settle())
    assert where(world) == {}
    world.now += 10
    run(process.settle())
    assert set(where(world)) == {"m"}
    assert conditions(world, "m")["Placed"] == ("True", "Placed")


def test_a_pinned_model_and_one_that_comes_later_wait_for_no_host_that_starts() -> None:
    world = World()
    world.starts = 1
    world.ask_for_pool(2)
    world.ask_for("pinned", placement={"pool": "shared", "pinned": True})
    world.ask_for("m")
    process = Process(world)
    run(process.settle())
    assert set(where(world)) == {"pinned"}
    world.now += 60
    world.ask_for_pool(3)
    world.ask_for("later")
    process.hear()
    run(process.settle())
    assert set(where(world)) == {"pinned", "m", "later"}


def test_a_host_that_drains_goes_on_draining_though_its_models_are_asked_for() -> None:
    world, process = settled(replicas=2, models=4)
    values = dict.fromkeys(world.hosts, 1.0)

    def worth(name: str) -> Any:
        def lie(report: dict[str, Any]) -> dict[str, Any]:
            return report | {"models": [entry | {"value": values[name]} for entry in report["models"]]}

        return lie

    for name, host in world.hosts.items():
        host.lie = worth(name)
    least, other = sorted(world.hosts)
    values[other] = 5.0
    run(process.settle())
    world.ask_for_pool(1)
    process.hear()
    run(process.turn())
    assert [process.pools.reconciler.is_draining(known.pod.uid) for known in process.pools.registry.of(POOL)] == [
        True,
        False,
    ]
    values[least] = 100.0
    run(process.settle())
    assert set(world.hosts) == {other}


def test_a_lost_nodes_models_answer_elsewhere_and_are_there_once_when_it_returns() -> None:
    world, process = settled(replicas=2, models=4)
    lost = sorted(world.hosts)[0]
    had = {model.name for model in world.hosts[lost].models}
    assert had
    node = f"node-of-{lost}"

    def ready(status: str) -> None:
        """Set the pod's Ready condition in the cluster, but not the container's own state."""
        condition = [{"type": "Ready", "status": status}]
        world.server.change("Pod", lost, lambda pod: pod["status"].update(conditions=condition))
        process.hear()

    ready("False")
    woken = process.nodes.note(node, Node(cordoned=False, lost=True))
    assert POOL.of("RuntimePool") in woken
    world.hosts[lost].dead = True
    run(process.settle())
    (other,) = set(world.hosts) - {lost}
    assert had <= {model.name for model in world.hosts[other].models}
    for name in had:
        assert conditions(world, name)["Ready"][0] == "True"
    ready("True")
    process.nodes.note(node, Node(cordoned=False, lost=False))
    world.hosts[lost].dead = False
    run(process.settle())
    assert {name: len(hosts) for name, hosts in where(world).items()} == dict.fromkeys(("m0", "m1", "m2", "m3"), 1)


def test_worth_is_told_without_another_load() -> None:
    world, process = settled(replicas=1, models=1)
    world.ask_for("m0", placement={"pool": "shared", "weight": 7, "priority": 3, "pinned": True})
    process.hear()
    run(process.settle())
    (host,) = world.hosts.values()
    (model,) = host.models.values()
    assert (model.spec["weight"], model.spec["priority"], model.spec["pinned"]) == (7, 3, True)
    assert len(host.loads) == 1


@pytest.mark.parametrize("change", ["sequence", "time", "granted", "twice", "shape"])
def test_reports_that_lie_or_go_back_change_nothing(change: str) -> None:
    world, process = settled(replicas=1, models=1)
    ((name, host),) = world.hosts.items()

    def lie(report: dict[str, Any]) -> dict[str, Any]:
        match change:
            case "sequence":
                return report | {"sequence": 0, "models": []}
            case "time":
                return report | {"sequence": report["sequence"] + 1, "time": report["time"] - 3600, "models": []}
            case "granted":
                return report | {"models": [{**report["models"][0], "weights": 1 << 40, "state": "Resident"}]}
            case "twice":
                return report | {"models": report["models"] * 2}
            case _:
                return report | {"models": "none"}

    host.lie = lie
    before = status_of(world, "m0")["placements"]
    run(process.settle())
    status = world.server.objects[HOST_KIND][name]["status"]
    (condition,) = [c for c in status["conditions"] if c["type"] == "Reporting"]
    assert (condition["status"], condition["reason"]) == ("False", "ReportRefused")
    assert len(status["models"]) == 1, "the last accepted report stays"
    assert status_of(world, "m0")["placements"] == before
    pool = world.server.objects[POOL_KIND]["shared"]["status"]
    loaded = next(c for c in pool["conditions"] if c["type"] == "Loaded")
    assert (pool["phase"], loaded["status"], loaded["reason"]) == ("Degraded", "False", "ReportRefused")
    placed = next(c for c in status_of(world, "m0")["conditions"] if c["type"] == "Placed")
    assert placed["status"] == "True"
    for words in (loaded["message"], placed["message"]):
        assert f"ModelHost {name}: {condition['message']}" in words
    world.ask_for("m1")
    process.hear()
    run(process.settle())
    placed = next(c for c in status_of(world, "m1")["conditions"] if c["type"] == "Placed")
    assert (placed["status"], placed["reason"]) == ("False", "ReportRefused")
    assert placed["message"].startswith(f"it is on 0 of 1 hosts of RuntimePool shared; ModelHost {name}: ")
    assert host.loads == [ObjectKey(NAMESPACE, "m0")]
    host.lie = lambda report: report
    run(process.settle())
    status = world.server.objects[HOST_KIND][name]["status"]
    assert [c["status"] for c in status["conditions"]] == ["True"]
    assert world.server.objects[POOL_KIND]["shared"]["status"]["phase"] == "Ready"
    assert conditions(world, "m1")["Placed"] == ("True", "Placed")
