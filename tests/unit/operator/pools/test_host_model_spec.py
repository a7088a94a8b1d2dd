"""Models of a pool with scaling: as many hosts as their status says, and never none."""

from __future__ import annotations

from operator_support.objects import Json, model
from operator_support.pooled import Process, World, run

from plimsoll_operator.placement.records.model import Replicas
from plimsoll_operator.pools.host_model_spec import HostModelSpec, planned_model
from plimsoll_operator.spec.identity import KIND
from plimsoll_operator.spec.model_deployment import read_spec

SCALING = {"minReplicas": 0, "maxReplicas": 2, "idleSeconds": 10}


def placed(desired: int | None, **scaling: int) -> Replicas:
    item = model(placement={"pool": "shared"}, scaling=SCALING | scaling)
    item["status"] = {} if desired is None else {"desiredReplicas": desired}
    return planned_model(HostModelSpec(read_spec(item), "r", {}), None, None).replicas


def test_the_planner_hears_of_what_is_wanted() -> None:
    assert placed(None) == Replicas(1, 0, 1)
    assert placed(2) == Replicas(2, 0, 2)
    assert placed(9) == Replicas(2, 0, 2), "an edit of the bounds counts at once"
    assert placed(0) == Replicas(1, 0, 1), "it stays placed and sleeps"
    assert placed(1, minReplicas=2) == Replicas(2, 2, 2)


def hosts_of(world: World) -> int:
    return sum(any(key.name == "a" for key in host.models) for host in world.hosts.values())


def test_a_model_is_on_as_many_hosts_as_its_status_says() -> None:
    world = World()
    world.ask_for_pool(2)
    world.ask_for("a", scaling=SCALING)
    process = Process(world)
    run(process.settle())
    assert hosts_of(world) == 1
    status: Json = world.server.objects[KIND]["a"]["status"]
    assert status["desiredReplicas"] == 1
    world.server.change(KIND, "a", lambda item: item["status"].update(desiredReplicas=2))
    run(Process(world).settle())
    assert hosts_of(world) == 2
    assert world.server.objects[KIND]["a"]["status"]["desiredReplicas"] == 2, "no gateway reports that fewer suffice"


def test_replicas_of_a_model_that_scales_are_ignored_in_a_pool_too() -> None:
    world = World()
    world.ask_for_pool(2)
    world.ask_for("a", scaling=SCALING, replicas=5)
    run(Process(world).settle())
    conditions = world.server.objects[KIND]["a"]["status"]["conditions"]
    assert [c["reason"] for c in conditions if c["type"] == "ReplicasIgnored"] == ["ScaledByDemand"]
    assert hosts_of(world) == 1
