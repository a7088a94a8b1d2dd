"""Which models share a process, and the arguments of their host."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from plimsoll_runtime.cli.main import build_parser
from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.local.host_sharing import PROCESSES, choose, predicted, share, shared_environment
from plimsoll_runtime.local.model import LocalModel, load_models
from plimsoll_runtime.local.pool import placement
from plimsoll_runtime.local.processes.launch import HostLaunch, RuntimeLaunch, documents
from plimsoll_runtime.local.processes.status_board import Status, replica_slots, table_document
from plimsoll_runtime.local.run_folder import RunFolder

MIB = 2**20


def loaded(*documents: dict[str, Any]) -> list[LocalModel]:
    return load_models(["-"], io.StringIO("\n---\n".join(map(json.dumps, documents))))


def document(name: str, source: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "plimsoll.dev/v1alpha1",
        "kind": "ModelDeployment",
        "metadata": {"name": name},
        "spec": {"model": {"source": source}, **spec},
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model whose weight file has 100 MiB."""
    (tmp_path / "config.json").write_text("{}")
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(100 * MIB)
    return tmp_path


def test_a_profile_of_a_cluster_is_said_to_have_no_effect() -> None:
    (model,) = loaded(document("m", "demo://gemma-3-270m", resources={"profile": "a100"}))
    assert model.notes == ("m: without effect on a laptop: spec.resources.profile",)


PARALLEL = {
    **{"tensor": 2, "pods": 2, "topologyKey": "topology.kubernetes.io/zone"},
    "tokenSecret": {"name": "group", "key": "token"},
}


def test_the_pods_of_a_group_are_said_to_have_no_effect() -> None:
    (model,) = loaded(document("m", "demo://gemma-3-270m", replicas=2, parallel=PARALLEL))
    paths = [f"spec.parallel.{field}" for field in ("pods", "topologyKey", "tokenSecret")]
    assert model.notes == (f"m: without effect on a laptop: {', '.join(paths)}",)
    assert model.replicas == 2
    assert build_parser().parse_args(["serve", *model.arguments]).tensor_parallel == 2


def test_a_divided_model_shares_no_process() -> None:
    models = loaded(
        document("divided", "demo://gemma-3-270m", parallel={"pipeline": 2}), document("other", "demo://gemma-3-270m")
    )
    assert not choose(models, None, lambda: 0).together
    with pytest.raises(UsageError, match=r"^divided: a model that is divided among ranks .* run them with --apart"):
        share(models)


def test_what_a_model_takes(folder: Path) -> None:
    one, two, unknown, broken = loaded(
        document("one", f"file://{folder}"),
        document("two", f"file://{folder}", replicas=2, runtime={"kvMemory": "50MiB"}),
        document("unknown", "hf://org/m", runtime={"kvMemory": "40%"}),
        document("broken", f"file://{folder}/none"),
    )
    assert predicted(one) == 100 * MIB + PROCESSES
    assert predicted(two) == 2 * (150 * MIB + PROCESSES)
    assert predicted(unknown) == predicted(broken) == PROCESSES


def test_models_share_a_process_where_they_do_not_fit(folder: Path) -> None:
    models = loaded(*(document(name, f"file://{folder}") for name in ("a", "b", "c")))
    needed = sum(map(predicted, models))
    assert not choose(models, None, lambda: needed).together
    choice = choose(models, None, lambda: needed - 1)
    assert choice.together
    assert choice.why.startswith("3 models need 1.3 GiB, but 1.3 GiB are free: they share one process")
    assert not choose(models[:1], None, lambda: 0).together
    stopped = loaded(document("a", f"file://{folder}"), document("b", f"file://{folder}", replicas=0))
    assert not choose(stopped, None, lambda: 0).together


def test_who_asks_is_obeyed_in_silence(folder: Path) -> None:
    models = loaded(*(document(name, f"file://{folder}") for name in ("a", "b")))
    assert choose(models, True, lambda: 2**60) == choose(models, True, lambda: 0)
    assert (choose(models, True).together, choose(models, True).why) == (True, "")
    assert not choose(models, False, lambda: 0).together


KEEPING: dict[str, Any] = {
    "responses": {"claim": "kept", "count": 5, "size": "1Gi", "days": 7},
    "files": {"claim": "shared", "size": "2Gi", "batchLines": 8},
}


def test_a_claim_is_a_folder_of_the_run(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each replica has its own response store, and all share one folder for files."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    run = RunFolder(8000)
    one, plain = loaded(document("one", f"file://{folder}", **KEEPING), document("plain", f"file://{folder}"))
    assert one.notes == ()
    parsed = vars(build_parser().parse_args(list(RuntimeLaunch(one, "one-1", None, run, ("serve",))().command)))
    assert parsed["response_store"] == run.claims / "default/kept/one-1.sqlite"
    assert parsed["files_dir"] == run.claims / "default/shared/files"
    assert (parsed["max_responses"], parsed["max_response_bytes"], parsed["response_days"]) == (5, 1 << 30, 7)
    assert (parsed["files_shared"], parsed["files_size"], parsed["batch_lines"]) == (True, 2 << 30, 8)
    assert "--files-dir" not in RuntimeLaunch(plain, "plain-0", None, run, ("serve",))().command
    table = table_document([one, plain], {"one-0": Status(), "plain-0": Status()}, datetime(2026, 1, 1, tzinfo=UTC))
    assert [model["files"] for model in table["models"]] == ["default/shared", ""]


def test_models_that_share_a_process_keep_the_same(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    run = RunFolder(8000)
    run.folder.mkdir(parents=True)
    documents = [document("a", f"file://{folder}", **KEEPING), document("b", f"file://{folder}")]
    models = share(loaded(*documents))
    words = HostLaunch("host", models, (), run, ("host",))().command
    parsed = vars(build_parser().parse_args(list(words)))
    assert parsed["response_store"] == run.claims / "default/kept/host.sqlite"
    assert parsed["files_dir"] == run.claims / "default/shared/files"
    documents.append(document("c", f"file://{folder}", files={"claim": "other"}))
    with pytest.raises(
        UsageError, match=r"a and c share a process, but have different spec.responses or spec.files; .* --apart"
    ):
        share(loaded(*documents))


def test_all_that_share_have_one_slot(folder: Path) -> None:
    models = share(loaded(document("a", f"file://{folder}", replicas=3), document("b", "hf://o/m", replicas=0)))
    assert [replica_slots(model) for model in models] == [("host",), ()]
    assert models[0].notes == ("a: without effect in a shared process: spec.replicas",)
    assert models[1].notes == ()


def test_environments_are_one(folder: Path) -> None:
    def with_env(name: str, **values: str) -> dict[str, Any]:
        env = [{"name": key, "value": value} for key, value in values.items()]
        return document(name, f"file://{folder}", template={"env": env})

    models = loaded(with_env("a", X="1"), with_env("b", X="1", Y="2"))
    assert shared_environment(models) == {"X": "1", "Y": "2"}
    with pytest.raises(
        UsageError, match=r"a and b share a process, but have different values of X in spec\.template\.env"
    ):
        share(loaded(with_env("a", X="1"), with_env("b", X="2")))


def test_a_host_is_told_the_same_of_them(folder: Path) -> None:
    models = loaded(document("a", f"file://{folder}", runtime={"kvMemory": "50MiB", "threads": 1, "maxSequences": 3}))
    again = load_models(["-"], io.StringIO(documents(models)))
    assert list(map(placement, again)) == list(map(placement, models))
    ((name, spec),) = map(placement, models)
    assert (str(name), spec.served_names, spec.minimum_kv) == ("default/a", ("a",), "50MiB")
    assert spec.runtime == {"maxSequences": 3}


def test_a_revision_names_what_a_spec_says(folder: Path) -> None:
    def revision(**runtime: Any) -> str:
        (model,) = loaded(document("a", f"file://{folder}", runtime=runtime))
        return placement(model)[1].revision

    assert revision(maxSequences=3) == revision(maxSequences=3) != revision(maxSequences=4)
    assert revision(kvMemory="40%") == revision()  # a share of the free memory, which a host does not know


def test_a_model_that_brings_code_shares_with_nobody(folder: Path) -> None:
    bringing = document("code", f"file://{folder}")
    bringing["spec"]["model"]["trustRemoteCode"] = True
    models = loaded(bringing, document("other", f"file://{folder}"))
    assert not choose(models, None, lambda: 0).together
    with pytest.raises(UsageError, match=r"^code: .*trustRemoteCode.*--apart"):
        share(models)
