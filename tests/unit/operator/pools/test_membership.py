"""Models of other namespaces: which a pool accepts, what they may load, and which hosts may report them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from gateway_support.tables import table_of
from operator_support.pooled import POOL, Process, World, run
from operator_support.server import NAMESPACE

from plimsoll_gateway.discovery.kubernetes_objects import HOSTS, MODELS, PODS
from plimsoll_operator.spec.identity import HOST_KIND, KIND, ObjectKey

BY_NAME = {"matchLabels": {"kubernetes.io/metadata.name": "guests"}}
GOLD = {"matchLabels": {"tier": "gold"}}
PLACED = {"pool": POOL.name, "namespace": NAMESPACE}
GUEST = ObjectKey("guests", "m")


def asked(namespaces: Any = None, **spec: Any) -> World:
    """Return a world with a pool in `team`, and a model m of the namespace `guests` that names it."""
    world = World()
    world.label("guests", tier="gold")
    world.label(NAMESPACE)
    world.ask_for_pool(1, **({} if namespaces is None else {"namespaces": namespaces}))
    world.ask_for("m", namespace="guests", placement=PLACED, **spec)
    return world


def settled(world: World, **options: Any) -> Process:
    process = Process(world, **options)
    run(process.settle())
    return process


def again(process: Process) -> None:
    process.hear()
    run(process.settle())


def status(world: World, name: str = "m") -> dict[str, Any]:
    found: dict[str, Any] = world.server.objects[KIND][name]["status"]
    return found


def told(world: World, kind: str = "Placed", name: str = "m") -> tuple[str, str, str]:
    found = next(c for c in status(world, name)["conditions"] if c["type"] == kind)
    return found["status"], found["reason"], found["message"]


def on_hosts(world: World) -> set[ObjectKey]:
    return {key for host in world.hosts.values() for key in host.models}


def routed(world: World) -> dict[str, int]:
    """Return the number of replicas to which the gateway routes each model."""
    kinds: tuple[tuple[str, Callable[[Any], Any]], ...] = (
        (KIND, MODELS.entry),
        ("Pod", PODS.entry),
        (HOST_KIND, HOSTS.entry),
    )
    objects = [[entry(item) for item in world.server.objects[kind].values()] for kind, entry in kinds]
    return {str(model.key): len(model.replicas) for model in table_of(*objects).models}


@pytest.mark.parametrize("selector", [BY_NAME, GOLD, {}])
def test_a_model_of_a_namespace_that_is_selected_is_placed_and_routed_to(selector: dict[str, Any]) -> None:
    world = asked(selector)
    process = settled(world)
    assert on_hosts(world) == {GUEST}
    assert told(world, "Ready")[0] == "True"
    (host,) = world.hosts
    (placement,) = status(world)["placements"]
    assert (placement["namespace"], placement["host"]) == (NAMESPACE, host)
    assert status(world)["where"].startswith(f"{NAMESPACE}/{host} ")
    assert f"RuntimePool {POOL}" in told(world)[2]
    assert routed(world) == {"guests/m": 1}
    assert ("m", "Placed") in {(name, reason) for name, reason, _ in process.api.events}


@pytest.mark.parametrize(
    ("selector", "words"),
    [
        (None, f"RuntimePool {POOL} accepts no models of other namespaces; add to it spec.namespaces: {{matchLabels: "),
        (
            {"matchLabels": {"tier": "silver"}},
            f"spec.namespaces of RuntimePool {POOL} does not select namespace guests",
        ),
    ],
)
def test_one_of_a_namespace_that_is_not_selected_is_refused_in_words(selector: Any, words: str) -> None:
    world = asked(selector)
    settled(world)
    assert on_hosts(world) == set()
    state, reason, message = told(world)
    assert (state, reason) == ("False", "NamespaceNotAdmitted")
    assert words in message
    assert "kubernetes.io/metadata.name: guests" in message
    assert told(world, "Ready")[:2] == ("False", "NamespaceNotAdmitted")
    assert routed(world) == {"guests/m": 0}


def test_labels_and_selectors_that_change_let_models_in_and_out() -> None:
    world = asked(GOLD)
    process = settled(world)
    assert on_hosts(world) == {GUEST}
    world.label("guests", tier="tin")
    again(process)
    assert on_hosts(world) == set(), "a pool may withdraw its admission at any time"
    assert told(world)[1] == "NamespaceNotAdmitted"
    (refused,) = [note for name, reason, note in process.api.events if (name, reason) == ("m", "Refused")]
    assert "does not select namespace guests" in refused
    world.ask_for_pool(1, namespaces=BY_NAME)
    again(process)
    assert on_hosts(world) == {GUEST}
    assert routed(world) == {"guests/m": 1}
    world.ask_for_pool(1)
    again(process)
    assert on_hosts(world) == set()
    assert routed(world) == {"guests/m": 0}


def test_the_gateway_stops_before_the_host_has_let_it_go() -> None:
    world = asked(GOLD)
    process = settled(world)
    (host,) = world.hosts.values()
    world.label("guests")
    process.hear()
    process.queue.add(POOL.of("Placement"))
    run(process.turn())  # The host gets the removal, and still has the model.
    run(process.write_hosts())
    assert GUEST in host.models
    assert routed(world) == {"guests/m": 0}
    run(process.one_pass(GUEST.of(KIND)))
    assert told(world, "Ready")[:2] == ("False", "NamespaceNotAdmitted"), "though the host still has it"


def test_without_sight_of_labels_namespaces_are_chosen_by_name() -> None:
    world = asked(BY_NAME)
    settled(world, with_namespaces=False)
    assert on_hosts(world) == {GUEST}
    world = asked(GOLD)
    settled(world, with_namespaces=False)
    state, reason, message = told(world)
    assert (state, reason) == ("False", "NamespaceUnknown")
    assert "requires the labels tier" in message
    assert "watchNamespaces" in message
    assert on_hosts(world) == set()


@pytest.mark.parametrize(
    ("source", "reason", "words"),
    [
        ("file:///models/weights/x", "SourceNotAdmitted", "and not from file:///models/weights/x"),
        (
            "pvc://weights/x",
            "SourceNotAdmitted",
            "add to its spec.sharedClaims: [weights], and to its spec.template.volumes: ",
        ),
        ("hf://org/model", "", ""),
        ("demo://x", "", ""),
    ],
)
def test_what_models_of_other_namespaces_may_load(source: str, reason: str, words: str) -> None:
    world = asked({}, model={"source": source})
    settled(world)
    if not reason:
        assert on_hosts(world) == {GUEST}
        return
    assert on_hosts(world) == set()
    assert told(world)[:2] == ("False", reason)
    assert words in told(world)[2]


def test_a_claim_must_be_shared_and_mounted_and_is_taken_back_at_any_time() -> None:
    volume = {"name": "weights", "persistentVolumeClaim": {"claimName": "weights"}}
    line = "{name: weights, persistentVolumeClaim: {claimName: weights}}"
    world = asked({}, model={"source": "pvc://weights/x"})
    world.ask_for_pool(1, namespaces={}, sharedClaims=["weights"])
    process = settled(world)
    assert told(world)[1] == "ClaimNotMounted"
    assert f"add to its spec.template.volumes: {line}" in told(world)[2]
    world.ask_for_pool(1, namespaces={}, template={"volumes": [volume]})
    again(process)
    assert told(world)[1] == "SourceNotAdmitted"
    assert told(world)[2].endswith("add to its spec.sharedClaims: [weights]")
    world.ask_for_pool(1, namespaces={}, template={"volumes": [volume]}, sharedClaims=["weights"])
    again(process)
    assert told(world, "Ready")[0] == "True"
    assert [model.spec["source"] for host in world.hosts.values() for model in host.models.values()] == [
        "file:///models/weights/x"
    ]
    world.ask_for_pool(1, namespaces={}, template={"volumes": [volume]})
    again(process)
    assert on_hosts(world) == set()


def test_a_name_of_a_volume_is_one_though_the_claims_has_dots() -> None:
    world = asked({}, model={"source": f"pvc://a.b.{'c' * 80}/x"})
    settled(world)
    name = told(world)[2].partition("volumes: {name: ")[2].partition(",")[0]
    assert name == f"a-b-{'c' * 59}"


def test_nobody_elses_host_is_believed_to_have_a_model() -> None:
    """It reports models that never named its pool: nothing changes for them, and they get no requests there."""
    world = asked(None)
    world.ask_for("own", placement=None)
    world.ask_for("other", namespace="guests", placement={"pool": "another", "namespace": NAMESPACE})
    process = settled(world)
    (host,) = world.hosts.values()
    for key in (GUEST, ObjectKey("guests", "other"), ObjectKey("guests", "nobody"), ObjectKey("elsewhere", "own")):
        spec = {"revision": "r", "servedNames": ["own"], "pinned": False, "weight": 1.0, "priority": 0}
        host.change("place", key, {"operation": str(key), "spec": spec, "level": "Resident"})
        host.proceed()
        host.decide(key, "Evicted", "a lie")
    host.lie = lambda report: report  # It reports this whatever it is asked.
    run(process.poll())
    run(process.write_hosts())
    assert routed(world)["guests/m"] == 0
    assert routed(world)["guests/other"] == 0
    assert told(world)[1] == "NamespaceNotAdmitted"
    assert status(world).get("placements", []) == []
    run(process.turn())
    told_of = {name for name, reason, _ in process.api.events if reason == "Evicted"}
    assert told_of <= {"m"}, "only of models that named this pool, if at all"
    for entry in next(iter(world.server.objects[HOST_KIND].values()))["status"]["models"]:
        assert entry["admitted"] is False, entry


def test_a_model_that_never_was_in_a_pool_does_not_leave_it_either() -> None:
    """A host of a pool that admits its namespace reports it while its dedicated pods are not ready yet."""
    world = asked({})
    world.ask_for("apart", namespace="guests", placement=None)
    process = settled(world)
    world.server.objects["Pod"].clear()  # its own pods are gone for a moment, and so nothing of it answers
    (host,) = world.hosts.values()
    key = ObjectKey("guests", "apart")
    spec = {"revision": "r", "servedNames": ["apart"], "pinned": False, "weight": 1.0, "priority": 0}
    host.change("place", key, {"operation": "lie", "spec": spec, "level": "Resident"})
    host.proceed()
    fresh = Process(world)
    for known in process.pools.registry:
        fresh.pools.registry.keep(POOL, [known.pod])
    for _ in range(3):
        run(fresh.poll())
        run(fresh.one_pass(POOL.of("Placement")))
        run(fresh.write_hosts())
        (stored,) = world.server.objects[HOST_KIND].values()
        said = {entry["name"]: entry["admitted"] for entry in stored["status"]["models"]}
        assert said.get("apart", False) is False


def test_a_model_of_another_namespace_without_a_token_is_fetched_with_none_at_all() -> None:
    """Models of the pool's own namespace use the HF_TOKEN of the pool's template."""
    world = asked({}, model={"source": "hf://org/model"})
    world.ask_for("own", model={"source": "hf://org/model"})
    settled(world)
    given = {key.name: model.spec.get("token") for host in world.hosts.values() for key, model in host.models.items()}
    assert given == {"m": "", "own": None}


def test_modelhosts_of_an_operator_of_before_say_nothing_and_are_believed_of_their_own_namespace() -> None:
    world = asked({})
    world.ask_for("own")
    settled(world)
    for item in world.server.objects[HOST_KIND].values():
        for entry in item["status"]["models"]:
            del entry["admitted"]
    assert routed(world) == {"guests/m": 0, "team/own": 1}
    fresh = Process(world)
    for _ in range(2):
        run(fresh.one_pass(POOL.of("RuntimePool")))
        run(fresh.poll())
        run(fresh.write_hosts())
        assert routed(world)["team/own"] == 1, "before anything was decided"
    run(fresh.settle())
    assert routed(world) == {"guests/m": 1, "team/own": 1}


def test_an_operator_that_begins_anew_goes_on_with_what_was_admitted() -> None:
    world = asked(GOLD)
    settled(world)
    fresh = Process(world)
    run(fresh.poll())
    run(fresh.write_hosts())
    assert routed(world) == {"guests/m": 1}, "before anything was decided"
    run(fresh.settle())
    assert routed(world) == {"guests/m": 1}
    assert sum(len(host.loads) for host in world.hosts.values()) == 1


def test_a_model_that_leaves_a_pool_of_another_namespace_is_answered_all_the_while() -> None:
    world = asked(GOLD)
    process = settled(world)
    world.ask_for("m", namespace="guests", placement=None)
    fresh = Process(world)
    seen = []
    for _ in range(20):
        run(fresh.turn())
        seen.append(routed(world)["guests/m"])
        world.proceed()
        fresh.hear()
        fresh.queue.add(POOL.of("Placement"))
    assert min(seen) >= 1
    assert on_hosts(world) == set()
    assert process.stores.models.get(GUEST) is not None


def test_two_models_of_one_name_in_two_namespaces_share_a_pool() -> None:
    """Their keys differ by namespace; the older one owns the served name."""
    world = asked({})
    world.ask_for("twin", model={"source": "demo://x", "servedNames": ["m"]})
    settled(world)
    assert on_hosts(world) == {GUEST}
    assert told(world, name="twin")[:2] == ("False", "ServedNameTaken")
    assert "m by guests/m" in told(world, name="twin")[2]


def test_a_pool_in_a_namespace_that_is_not_watched() -> None:
    world = World()
    world.label("guests")
    world.ask_for("m", namespace="guests", placement={"pool": "shared", "namespace": "hidden"})
    process = Process(world)
    process.stores.watched = frozenset({"guests", NAMESPACE})
    run(process.settle())
    assert told(world)[1] == "PoolNotFound"
    assert "does not watch namespace hidden" in told(world)[2]
    assert "watchNamespaces" in told(world)[2]
