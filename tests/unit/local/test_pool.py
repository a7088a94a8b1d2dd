"""RuntimePools on a laptop: the arguments of their process, and their models."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from plimsoll_runtime.cli.main import build_parser
from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.local.model import LocalModel, load_models, load_objects
from plimsoll_runtime.local.pool import LocalPool, place, placement, read_pools
from plimsoll_runtime.local.processes.launch import HostLaunch, documents
from plimsoll_runtime.local.run_folder import RunFolder

GIB = 2**30
EXAMPLES = Path(__file__).parents[3] / "examples"


def pool(name: str = "shared", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "plimsoll.dev/v1alpha1",
        "kind": "RuntimePool",
        "metadata": {"name": name},
        "spec": {"resources": {"memory": "6Gi"}, **spec},
    }


def model(name: str, **placed: Any) -> dict[str, Any]:
    return {
        "apiVersion": "plimsoll.dev/v1alpha1",
        "kind": "ModelDeployment",
        "metadata": {"name": name},
        "spec": {"model": {"source": "demo://gemma-3-270m"}, **({"placement": placed} if placed else {})},
    }


def loaded(*objects: dict[str, Any], memory: int = 64 * GIB) -> tuple[list[LocalModel], LocalPool | None]:
    models, others = load_objects(["-"], io.StringIO("\n---\n".join(map(json.dumps, objects))))
    return place(models, read_pools(others, memory))


def options(made: LocalPool | None) -> dict[str, Any]:
    assert made is not None
    return vars(build_parser().parse_args(["host", *made.arguments]))


def test_a_process_has_the_memory_of_a_pod() -> None:
    made = loaded(pool(memory={"line": "50%", "sleepers": "2Gi"}, eviction={"minimumResidencySeconds": 3}))[1]
    told = options(made)
    assert (told["line"], told["sleepers"]) == (str(2 * GIB), 2 * GIB)
    assert (told["minimum_residency"], told["device"]) == (3.0, "cpu")
    assert made is not None
    assert made.notes == ()


def test_what_is_free_is_what_it_has_where_that_is_less() -> None:
    made = loaded(pool(memory={"sleepers": "5Gi"}), memory=3 * GIB)[1]
    told = options(made)
    assert (told["line"], told["sleepers"]) == ("90%", GIB)
    assert made is not None
    assert made.notes == (
        "RuntimePool shared: 6.0 GiB are not free: models get 90% of 3.0 GiB of free memory, minus the memory "
        "for sleeping models",
    )


def test_an_accelerator_has_a_line_of_its_own() -> None:
    told = options(loaded(pool(resources={"memory": "6Gi", "accelerator": {"resource": "nvidia.com/gpu"}}))[1])
    assert (told["line"], told["device"]) == ("90%", "cuda")


def test_what_has_no_effect_is_named() -> None:
    made = loaded(
        pool(
            replicas=2,
            resources={"memory": "6Gi", "cpu": 2},
            namespaces={},
            template={"nodeSelector": {"a": "b"}, "env": [{"name": "X", "value": "1"}]},
        )
    )[1]
    assert made is not None
    assert made.notes == (
        "RuntimePool shared: without effect on a laptop: spec.replicas (one process), spec.resources.cpu, "
        "spec.template.nodeSelector, spec.namespaces",
    )
    assert made.environment == (("X", "1"),)


def test_models_of_a_pool_and_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models of the pool get its environment and stores, and the host gets their placement."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    env = {"env": [{"name": "X", "value": "1"}]}
    (inside, outside), made = loaded(
        pool(files={"claim": "kept", "size": "2Gi"}, template=env), model("a", pool="shared", weight=4), model("b")
    )
    assert made is not None
    assert (inside.in_host, outside.in_host) == (True, False)
    assert inside.stores.files_claim == "default/kept"
    run = RunFolder(8000)
    run.folder.mkdir(parents=True)
    launch = HostLaunch("host", [inside], made.arguments, run, ("host",))()
    assert launch.environment == {"X": "1"}
    assert "--files-dir" in launch.command
    assert vars(build_parser().parse_args(list(launch.command)))["service_slice"] == 30.0, "as on a cluster"
    (again,) = load_models(["-"], io.StringIO(documents([inside])))
    assert placement(again)[1].weight == 4


def test_a_pool_that_is_not_there() -> None:
    (alone,), made = loaded(model("a", pool="shared"))
    assert made is None
    assert not alone.in_host
    assert alone.notes == ("a: runs without the RuntimePool shared, which is not in the files",)
    with pytest.raises(
        UsageError, match=r"a names the RuntimePool default/other, but the files contain default/shared"
    ):
        loaded(pool(), model("a", pool="other"))
    with pytest.raises(UsageError, match=r"a names the RuntimePool team/shared"):
        loaded(pool(), model("a", pool="shared", namespace="team"))


def test_one_pool_at_a_time() -> None:
    with pytest.raises(UsageError, match=r"2 RuntimePools \(one, two\), but a laptop runs one at a time; .* --port"):
        loaded(pool("one"), pool("two"), model("a", pool="one"))


def test_a_host_takes_models_alone() -> None:
    with pytest.raises(
        UsageError, match="RuntimePool shared: this command accepts only objects of kind ModelDeployment; `plimsoll up`"
    ):
        load_models(["-"], io.StringIO(json.dumps(pool())))


def test_pools_are_checked_against_their_schema() -> None:
    with pytest.raises(UsageError, match=r"resources\.memory is what the models of a pool share"):
        loaded(pool(resources={}))
    with pytest.raises(UsageError, match=r'unknown field "spec\.memory\.lines"'):
        loaded(pool(memory={"lines": "90%"}))


@pytest.mark.parametrize("name", ["pool.yaml", "keeping-pool.yaml"])
def test_examples(name: str) -> None:
    models, others = load_objects([str(EXAMPLES / name)], io.StringIO())
    placed, made = place(models, read_pools(others, 64 * GIB))
    assert made is not None
    assert all(model.in_host for model in placed)
