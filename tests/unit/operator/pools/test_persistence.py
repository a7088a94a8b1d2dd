"""A pool's stores: its pods take over from each other, and gateways learn where files are."""

from __future__ import annotations

from typing import Any

from operator_support.pooled import POOL, Process, World, run

from plimsoll_operator.pools.pool_controller import PLACEMENT
from plimsoll_operator.spec.identity import KEEPER_LABEL, KIND, POOL_KIND

KEPT: dict[str, Any] = {"responses": {"claim": "kept"}, "files": {"claim": "shared"}}


def settled(replicas: int, **spec: Any) -> tuple[World, Process]:
    world = World()
    world.ask_for_pool(replicas, **spec)
    for name in ("a", "b"):
        world.ask_for(name)
    process = Process(world)
    run(process.settle())
    return world, process


def told(world: World, name: str = "a") -> str | None:
    found: str | None = world.server.objects[KIND][name]["status"].get("filesClaim")
    return found


def keepers(world: World) -> list[str]:
    pods = world.server.objects["Pod"].values()
    return sorted(pod["metadata"]["labels"].get(KEEPER_LABEL, "") for pod in pods)


def claims(world: World) -> list[set[str]]:
    """Return the claims of each pod."""
    volumes = [pod["spec"]["volumes"] for pod in world.server.objects["Pod"].values()]
    found = [[volume.get("persistentVolumeClaim") for volume in each] for each in volumes]
    return [{claim["claimName"] for claim in each if claim} for each in found]


def test_models_say_where_their_pools_files_are_while_there_are_any() -> None:
    world, process = settled(1)
    assert (told(world), keepers(world)) == (None, [""])
    world.ask_for_pool(1, files={"claim": "shared"})
    run(process.settle())
    assert (told(world), told(world, "b"), keepers(world)) == ("team/shared", "team/shared", [""])
    assert claims(world) == [{"shared"}]
    before = len(process.api.asked)
    run(process.settle())
    assert process.api.asked[before:] == [], "settled costs no write"
    world.ask_for_pool(1)
    run(process.settle())
    assert (told(world), claims(world)) == (None, [set()])


def test_one_that_no_pool_takes_says_nothing() -> None:
    world, process = settled(1, **KEPT)
    world.ask_for("guest", namespace="guests", placement={"pool": POOL.name, "namespace": POOL.namespace})
    run(process.settle())
    assert told(world, "guest") is None
    world.ask_for_pool(1, **KEPT, namespaces={})
    run(process.settle())
    assert told(world, "guest") == "team/shared"


def test_a_claim_that_has_models_keeps_nothing() -> None:
    """The pool reports it before a pod waits for its volumes forever."""
    volumes = [{"name": "weights", "persistentVolumeClaim": {"claimName": "shared"}}]
    world, process = settled(1, **KEPT)
    world.ask_for_pool(1, **KEPT, template={"volumes": volumes})
    run(process.settle())
    found = world.server.objects[POOL_KIND][POOL.name]["status"]["conditions"]
    (stalled,) = [c for c in found if c["type"] == "Stalled"]
    assert stalled["reason"] == "InvalidSpec"
    assert "files.claim shared is already a volume of the pods" in stalled["message"]
    assert claims(world) == [{"kept", "shared"}], "what runs goes on"
    assert told(world) == "team/shared"


def test_a_changed_claim_rolls_pods_which_take_over_one_after_the_other() -> None:
    world, process = settled(2, **KEPT)
    assert keepers(world) == ["pool.shared-0", "pool.shared-1"]
    before = set(world.server.objects["Pod"])
    world.ask_for_pool(2, responses={"claim": "larger"}, files={"claim": "shared"})
    for _ in range(60):
        process.queue.add_all([POOL.of(PLACEMENT), POOL.of(POOL_KIND)])
        run(process.turn())
        world.proceed()
        process.hear()
        world.now += 1
        assert len(set(keepers(world))) == len(keepers(world)), "two would write into one file"
        assert len(world.server.objects["Pod"]) in (1, 2)
    assert claims(world) == [{"larger", "shared"}] * 2
    assert keepers(world) == ["pool.shared-0", "pool.shared-1"]
    assert not before & set(world.server.objects["Pod"])


def test_the_only_pod_does_not_wait_for_somebody_to_take_its_models() -> None:
    """Its successor waits for it. Without a claim, the successor exists first and takes the models."""
    world, process = settled(1, **KEPT)
    (before,) = world.server.objects["Pod"]
    world.ask_for_pool(1, responses={"claim": "larger"}, files={"claim": "shared"})
    process.hear()
    run(process.one_pass(POOL.of(POOL_KIND)))
    pod = world.server.objects["Pod"][before]
    assert "deletionTimestamp" in pod["metadata"], "at once, with its models"
    run(process.settle())
    assert keepers(world) == ["pool.shared-0"]
    assert {model.name for host in world.hosts.values() for model in host.models} == {"a", "b"}
