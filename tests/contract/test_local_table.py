"""The gateway reads the routing table that laptop mode writes."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime

from plimsoll_gateway.discovery.table_file import parse_table
from plimsoll_runtime.local.model import LocalModel, Stores
from plimsoll_runtime.local.processes.status_board import Phase, Status, replica_slots, table_document

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def model(name: str, replicas: int, *served: str, namespace: str = "default", files: str | None = None) -> LocalModel:
    return LocalModel(
        namespace=namespace,
        name=name,
        source="demo://gemma-3-270m",
        served_names=served or (name,),
        replicas=replicas,
        arguments=(),
        sets_threads=False,
        environment=(),
        notes=(),
        origin="f.yaml",
        stores=Stores(files_claim=files),
    )


def test_every_phase_of_a_replica() -> None:
    one = model("gemma", 3, "gemma", "google/gemma")
    first, second, third = replica_slots(one)
    statuses = {
        first: Status(),
        second: Status(Phase.LOADING, url="http://127.0.0.1:1", pid=1, stage="reading weights", fraction=0.5),
        third: Status(Phase.READY, url="http://127.0.0.1:2", pid=2),
    }
    table = parse_table(json.dumps(table_document([one], statuses, BEGAN)))
    (entry,) = table.models
    assert (str(entry.key), entry.served_names, entry.created) == (
        "default/gemma",
        ("gemma", "google/gemma"),
        BEGAN.timestamp(),
    )
    assert [(replica.id, replica.ready) for replica in entry.replicas] == [(second, False), (third, True)]
    assert [replica.url for replica in entry.ready_for("google/gemma")] == ["http://127.0.0.1:2"]
    assert entry.message == ""


def test_the_gateway_knows_who_keeps_files() -> None:
    models = [model("a", 1, files="default/shared"), model("b", 1)]
    statuses = {name: Status(Phase.READY, url="http://127.0.0.1:1", pid=1) for name in ("a-0", "b-0")}
    keeping, other = parse_table(json.dumps(table_document(models, statuses, BEGAN))).models
    assert (keeping.files, keeping.replicas[0].files) == ("default/shared", "default/shared")
    assert (other.files, other.replicas[0].files) == ("", "")


def test_models_that_share_a_process_have_one_url() -> None:
    models = [replace(model(name, 1, name, f"{name}-too"), in_host=True) for name in ("a", "b")]
    stopped = replace(model("c", 0), in_host=True)
    statuses = {"host": Status(Phase.READY, url="http://127.0.0.1:1", pid=1)}
    table = parse_table(json.dumps(table_document([*models, stopped], statuses, BEGAN)))
    assert [[replica.id for replica in entry.replicas] for entry in table.models] == [["host"], ["host"], []]
    for entry in table.models[:2]:
        for name in entry.served_names:
            assert [replica.url for replica in entry.ready_for(name)] == ["http://127.0.0.1:1"]
    assert table.models[2].message == "the model is scaled to zero (spec.replicas: 0)"


def test_why_a_model_is_not_ready_reaches_its_clients() -> None:
    models = [model("a", 1), model("b", 0), model("a", 1, "other", namespace="team")]
    statuses = {
        "a-0": Status(Phase.WAITING, error="exited with code 4: unknown architecture\nmore", code=4, wait=2.0),
        "team.a-0": Status(Phase.LOADING, url="http://127.0.0.1:1", stage="reading weights", fraction=0.5),
    }
    table = parse_table(json.dumps(table_document(models, statuses, BEGAN)))
    assert {str(entry.key): entry.message for entry in table.models} == {
        "default/a": "exited with code 4: unknown architecture; restarting in 2.0 s",
        "default/b": "the model is scaled to zero (spec.replicas: 0)",
        "team/a": "loading: reading weights 50%",
    }
