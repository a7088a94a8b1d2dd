"""The gateway routes to the objects that the operator creates; laptop mode runs the same."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from gateway_support.tables import table_of
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_support.stub_host import StubHost
from operator_support.verdicts import MEMORY

from plimsoll_gateway.discovery.kubernetes_objects import HOSTS, MODELS, PASSING, POD_SELECTOR, PODS
from plimsoll_operator.build.arguments import serve_arguments as operator_arguments
from plimsoll_operator.build.host import HostKey, build_host
from plimsoll_operator.build.image import Image
from plimsoll_operator.build.model import build_pod
from plimsoll_operator.build.pod_revision import user_part
from plimsoll_operator.kube.served_names import NameRegistry
from plimsoll_operator.pools.hosts.host_registry import HostPod, Known
from plimsoll_operator.pools.hosts.model_host import build_host as build_model_host
from plimsoll_operator.pools.hosts.model_host import host_status
from plimsoll_operator.spec import identity
from plimsoll_operator.spec.identity import GROUP_LABEL
from plimsoll_operator.spec.model_deployment import read_spec
from plimsoll_operator.spec.persistence import read_files, read_responses
from plimsoll_operator.spec.rollout import Rollout
from plimsoll_operator.spec.runtime_pool import PoolSpec
from plimsoll_operator.spec.template import SpecError, Template
from plimsoll_operator.status.reasons import CALM, Reason
from plimsoll_runtime.api.server.config import FrontConfig
from plimsoll_runtime.cli.host import host_config
from plimsoll_runtime.cli.main import build_parser
from plimsoll_runtime.local.manifest.manifest import Document
from plimsoll_runtime.local.manifest.validation import admit
from plimsoll_runtime.local.model import read_stores
from plimsoll_runtime.local.model import serve_arguments as laptop_arguments
from plimsoll_runtime.options import BatchOptions

SPECS: list[dict[str, Any]] = [
    {"model": {"source": "demo://gemma-3-270m"}},
    {"model": {"source": "file:///srv/models/a b", "servedNames": ["a", "org/a"]}},
    {"model": {"source": "hf://org/name", "revision": "v1.0"}},
    {
        "model": {"source": "demo://gemma-3-270m"},
        "runtime": {
            "dtype": "float32",
            "maxModelLen": 4096,
            "maxBatchTokens": 512,
            "maxSequences": 4,
            "maxWaiting": 64,
            "kvMemory": "40%",
            "blockSize": 32,
            "threads": 2,
            "prefixCaching": False,
            "attentionBackend": "auto",
            "policy": "deadline",
            "drainSeconds": 7,
        },
    },
    {"model": {"source": "demo://gemma-3-270m"}, "runtime": {"prefixCaching": True}},
    {"model": {"source": "hf://org/m", "trustRemoteCode": True}},
    {"model": {"source": "hf://org/m", "trustRemoteCode": False}},
]


def stored(name: str, spec: dict[str, Any]) -> dict[str, Any]:
    """Return the object as the API server returns it."""
    body = {"apiVersion": identity.API_VERSION, "kind": identity.KIND, "metadata": {"name": name}, "spec": spec}
    filled = admit(Document("test", body))
    filled["metadata"] |= {
        "namespace": "team",
        "uid": "u",
        "resourceVersion": "1",
        "generation": 1,
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }
    return filled


@pytest.mark.matrix(4)
@pytest.mark.parametrize("spec", SPECS)
def test_a_pod_and_a_laptop_run_the_same(spec: dict[str, Any]) -> None:
    item = stored("gemma", spec)
    pod = vars(build_parser().parse_args(operator_arguments(read_spec(item))))
    laptop = vars(build_parser().parse_args(["serve", *laptop_arguments("gemma", item["spec"])]))
    address = {"host", "port", "metrics_port", "deployment"}
    assert {key: pod[key] for key in pod.keys() - address} == {key: laptop[key] for key in laptop.keys() - address}
    assert (pod["host"], pod["port"], pod["metrics_port"]) == ("0.0.0.0", identity.PORT, identity.METRICS_PORT)
    assert pod["deployment"] == ("team", "gemma")
    assert pod["trust_remote_code"] is spec["model"].get("trustRemoteCode", False)


KEEPING: dict[str, Any] = {
    "model": {"source": "demo://gemma-3-270m"},
    "responses": {"claim": "kept", "count": 5, "size": "1Gi", "days": 7, "tenantShare": "50%"},
    "files": {"claim": "shared", "size": 1 << 30, "batchLines": 64},
}


def kept_pod(uid: str, group: str) -> dict[str, Any]:
    """Return a pod of a model that keeps all kinds of data, as the API server returns it."""
    pod = build_pod(read_spec(stored("gemma", KEEPING)), Image("runtime:1"), uid, group)
    pod["metadata"] |= {"uid": uid, "resourceVersion": "2"}
    pod["status"] = {"podIP": "198.18.0.9", "conditions": [{"type": "Ready", "status": "True"}]}
    return pod


def test_a_pod_and_a_laptop_keep_the_same(tmp_path: Path) -> None:
    """Paths differ: a pod's are on its claims."""
    item, pod = stored("gemma", KEEPING), kept_pod("p", "3")
    (container,) = pod["spec"]["containers"]
    stores = read_stores("team", item["spec"])
    laptop = vars(build_parser().parse_args(["serve", "m", *stores.arguments(tmp_path, "gemma-3")]))
    words = [word.replace("$(PLIMSOLL_GROUP)", pod["metadata"]["labels"][GROUP_LABEL]) for word in container["args"]]
    parsed = vars(build_parser().parse_args(words))
    bounds = {"max_responses": 5, "max_response_bytes": 1 << 30, "response_days": 7, "response_tenant_share": 0.5}
    bounds |= {"files_size": 1 << 30, "batch_lines": 64, "files_shared": True}
    assert {name: parsed[name] for name in bounds} == {name: laptop[name] for name in bounds} == bounds
    assert laptop["response_store"] == tmp_path / "team/kept/gemma-3.sqlite"
    assert laptop["files_dir"] == tmp_path / "team/shared/files"
    assert laptop["response_store"].parent.is_dir()
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume.get("persistentVolumeClaim") for volume in pod["spec"]["volumes"]}
    assert str(parsed["response_store"]) == f"{mounts['plimsoll-responses']}/gemma-3.sqlite"
    assert str(parsed["files_dir"]) == mounts["plimsoll-files"]
    assert volumes["plimsoll-responses"] == {"claimName": "kept"}
    assert volumes["plimsoll-files"] == {"claimName": "shared"}
    (group,) = [entry["valueFrom"] for entry in container["env"] if entry["name"] == "PLIMSOLL_GROUP"]
    assert group == {"fieldRef": {"fieldPath": f"metadata.labels['{GROUP_LABEL}']"}}


def test_the_gateway_knows_what_pods_keep() -> None:
    pods = [kept_pod("p", "0"), kept_pod("q", "1"), kept_pod("r", "0")]
    items = [stored("gemma", KEEPING)]
    replicas = [table_of(map(MODELS.entry, items), [PODS.entry(pod)]).models[0].replicas[0] for pod in pods]
    (model,) = table_of(map(MODELS.entry, items), []).models
    assert model.files == "team/shared"
    assert {replica.files for replica in replicas} == {"team/shared"}
    assert [replica.keeps_as for replica in replicas] == ["team/gemma-0", "team/gemma-1", "team/gemma-0"]
    plain = build_pod(read_spec(stored("gemma", SPECS[0])), Image("runtime:1"), "x1")
    plain["metadata"] |= {"uid": "p", "resourceVersion": "2"}
    plain["status"] = pods[0]["status"]
    (other,) = table_of([MODELS.entry(stored("gemma", SPECS[0]))], [PODS.entry(plain)]).models
    assert (other.files, other.replicas[0].files, other.replicas[0].keeps_as) == ("", "", "p")


@pytest.mark.parametrize("spec", SPECS)
def test_the_gateway_routes_to_the_operators_pods(spec: dict[str, Any]) -> None:
    item = stored("gemma", spec)
    pod = build_pod(read_spec(item), Image("runtime:1"), "x1")
    pod["metadata"] |= {"uid": "p", "resourceVersion": "2"}
    pod["status"] = {"podIP": "198.18.0.9", "conditions": [{"type": "Ready", "status": "True"}]}
    labels = pod["metadata"]["labels"]
    assert all(labels[key] == value for key, _, value in (part.partition("=") for part in POD_SELECTOR.split(",")))
    (model,) = table_of([MODELS.entry(item)], [PODS.entry(pod)]).models
    (replica,) = model.replicas
    assert replica.url == f"http://198.18.0.9:{identity.PORT}"
    assert replica.names == frozenset(model.served_names)
    assert all(model.ready_for(name) == (replica,) for name in model.served_names)


@pytest.mark.parametrize(("kv", "total", "fits"), MEMORY)
def test_the_operator_says_of_memory_what_the_schema_says(kv: str, total: str | int, fits: bool) -> None:
    """Objects created before this rule still exist."""
    item = stored("gemma", SPECS[0])
    item["spec"] |= {"runtime": {"kvMemory": kv}, "resources": {"memory": total}}
    if fits:
        read_spec(item)
        return
    with pytest.raises(SpecError, match=f"kvMemory {kv} leaves nothing of resources.memory {total}"):
        read_spec(item)


TIMES = st.sampled_from(["2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z"])
CLAIMS = st.lists(st.tuples(TIMES, st.sets(st.sampled_from("abc"), min_size=1)), max_size=5)


@given(CLAIMS, st.randoms(use_true_random=False))
@settings(deadline=None)
def test_both_give_a_name_to_the_same_object(claims: list[tuple[str, set[str]]], random: Any) -> None:
    template = stored("m", SPECS[0])
    items = []
    for index, (created, names) in enumerate(claims):
        meta = {"name": f"m{index}", "uid": f"u{index}", "creationTimestamp": created}
        model = {"source": "demo://x", "servedNames": sorted(names)}
        items.append({**template, "metadata": template["metadata"] | meta, "spec": {"model": model}})
    random.shuffle(items)
    registry = NameRegistry()
    for item in items:
        registry.note(item)
    table = table_of(map(MODELS.entry, items), [])
    for item in items:
        spec = read_spec(item)
        lost = {loss.name: loss.why.removeprefix("by ") for loss in registry.conflicts(spec)}
        for name in spec.served_names:
            owner = table.find(name)
            assert owner is not None
            assert str(owner.key) == lost.get(name, str(spec.key))


def pool_of(**kept: Any) -> PoolSpec:
    return PoolSpec(
        owner=identity.Owner(identity.ObjectKey("team", "shared"), "r", identity.POOL_KIND),
        generation=1,
        replicas=1,
        cpu=None,
        memory="4Gi",
        accelerator=None,
        cpu_limit=None,
        ephemeral_storage=None,
        line="90%",
        sleepers="1Gi",
        minimum_residency=30,
        drain=30,
        template=Template(),
        rollout=Rollout(),
        **kept,
    )


def test_a_pools_pod_keeps_what_a_models_does_and_the_gateway_knows() -> None:
    """A pool and a model of one name on the same claims are told apart."""
    responses, files = read_responses(KEEPING["responses"]), read_files(KEEPING["files"])
    pod = build_host(pool_of(responses=responses, files=files), Image("runtime:1"), HostKey(b"o" * 32), "x1", "3")
    (container,) = pod["spec"]["containers"]
    words = [word.replace("$(PLIMSOLL_GROUP)", pod["metadata"]["labels"][GROUP_LABEL]) for word in container["args"]]
    told = host_config(build_parser().parse_args(words))
    assert told.response_store == Path("/var/lib/plimsoll/responses/pool.shared-3.sqlite")
    assert told.batches == BatchOptions(Path("/var/lib/plimsoll/files"), True, 1 << 30, 64)
    own = kept_pod("p", "3")["spec"]
    names = ("plimsoll-responses", "plimsoll-files")
    for part in ("volumes", "volumeMounts"):
        found, expected = (body["containers"][0] if part == "volumeMounts" else body for body in (pod["spec"], own))
        assert [v for v in found[part] if v["name"] in names] == [v for v in expected[part] if v["name"] in names] != []
    (group,) = [entry for entry in container["env"] if entry["name"] == "PLIMSOLL_GROUP"]
    assert group in own["containers"][0]["env"]
    pod["metadata"] |= {"uid": "p", "resourceVersion": "2"}
    replica = PODS.entry(pod).value
    assert replica is None, "it has no address yet"
    pod["status"] = {"podIP": "198.18.0.9", "conditions": [{"type": "Ready", "status": "True"}]}
    replica = PODS.entry(pod).value
    assert replica is not None
    assert (replica.files, replica.keeps_as) == ("team/shared", "team/pool.shared-3")
    pooled = stored("gemma", {**SPECS[0], "placement": {"pool": "shared"}})
    assert MODELS.entry(pooled).value.files == ""
    pooled["status"] = {"filesClaim": "models/shared"}
    assert MODELS.entry(pooled).value.files == "models/shared"
    moved = stored("gemma", KEEPING) | {"status": {"filesClaim": "models/shared"}}
    assert MODELS.entry(moved).value.files == "team/shared", "it has dedicated pods"


def test_the_gateway_knows_which_reasons_pass() -> None:
    """For other reasons it refers clients to the model's owner. A stopped model does not start by waiting."""
    turns = {Reason.WAITS_FOR_ROOM, Reason.WAITS_FOR_TURN}
    ready = CALM - {Reason.STOPPED, Reason.SCALED_BY_DEMAND}  # the latter is not a reason of Ready
    assert {reason.value for reason in ready | turns} == PASSING


def test_a_pool_that_keeps_nothing_has_the_pods_that_it_had() -> None:
    """The user part of their revision label, as computed by the release before stores existed."""
    assert user_part(pool_of()) == "4f4fb07141"


def test_the_gateway_routes_to_what_the_operator_says_of_a_host() -> None:
    """A host's report becomes a ModelHost, which the gateway joins with the operator's pod."""
    pool = pool_of()
    pod = build_host(pool, Image("runtime:1"), HostKey(b"o" * 32), "x1")
    pod["metadata"] |= {"uid": "p", "resourceVersion": "2"}
    pod["status"] = {"podIP": "198.18.0.9", "conditions": [{"type": "Ready", "status": "True"}]}
    labels = pod["metadata"]["labels"]
    assert all(labels[key] == value for key, _, value in (part.partition("=") for part in POD_SELECTOR.split(",")))
    stub = StubHost()
    item = stored("gemma", SPECS[0])
    key = identity.ObjectKey("team", "gemma")
    spec = {"revision": "r", "servedNames": ["gemma", "g"], "pinned": False, "weight": 1.0, "priority": 0}
    stub.change("place", key, {"operation": "1", "spec": spec, "level": "Resident"})
    found = HostPod(pool.key, pod["metadata"]["name"], "p", "n1", "198.18.0.9", 0)
    host = build_model_host(found)
    host["metadata"] |= {"uid": "h", "resourceVersion": "3"}
    host["status"] = host_status(
        Known(found, stub.report()), False, {}, datetime(2026, 1, 1, tzinfo=UTC), lambda model: True
    )
    (model,) = table_of([MODELS.entry(item)], [PODS.entry(pod)], [HOSTS.entry(host)]).models
    (replica,) = model.ready_for("gemma")
    assert replica.url == f"http://198.18.0.9:{identity.PORT}"
    assert replica.names == frozenset({"gemma", "g"})


def test_the_operator_knows_how_long_a_runtime_drains() -> None:
    assert read_spec(stored("gemma", SPECS[0])).drain_seconds == FrontConfig().drain_seconds
