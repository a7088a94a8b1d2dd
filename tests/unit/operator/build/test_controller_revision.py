"""ControllerRevisions: their content, and rebuilding a pod from one."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from operator_support.objects import FULL, Json, model

from plimsoll_operator.build.controller_revision import (
    Revision,
    build_revision,
    present_revision,
    read_revision,
    spec_of_revision,
)
from plimsoll_operator.build.image import Image
from plimsoll_operator.build.model import build_pod
from plimsoll_operator.build.pod_revision import user_part
from plimsoll_operator.spec.identity import REVISION_LABEL, controller_of
from plimsoll_operator.spec.model_deployment import read_spec

IMAGE = Image("registry.example/runtime:1", allowed=("registry.example/ai",))


def stored(item: Json, number: int = 1, **changes: Any) -> Revision:
    spec = read_spec(item)
    written = build_revision(spec, replace(present_revision(item, spec), number=number, **changes))
    written["metadata"]["uid"] = "uid-1"
    found: Revision = read_revision(json.loads(json.dumps(written)))
    return found


@pytest.mark.parametrize("spec", [{}, FULL], ids=["least", "full"])
def test_a_pod_of_a_stored_revision_is_the_pod_that_it_was_made_for(spec: Json) -> None:
    before, after = model(**spec), model(generation=2, runtime={"maxModelLen": 64}, replicas=7)
    revision = stored(before)
    again = spec_of_revision(after, revision)
    assert again is not None
    assert (again.replicas, again.generation) == (7, 2), "how many there are says the present spec"
    assert build_pod(again, IMAGE, "a") == build_pod(read_spec(before), IMAGE, "a")
    assert build_pod(again, IMAGE, "a")["metadata"]["labels"][REVISION_LABEL] == revision.label


def test_it_belongs_to_its_model_and_is_named_by_what_is_in_it() -> None:
    item = model(**FULL)
    spec = read_spec(item)
    written = build_revision(spec, replace(present_revision(item, spec), number=3, mark="m"))
    assert controller_of(written)["uid"] == spec.owner.uid
    assert stored(item, 3, mark="m") == Revision(
        written["metadata"]["name"], "uid-1", user_part(spec), 3, present_revision(item, spec).spec, "m"
    )
    assert len(written["metadata"]["name"]) <= 63
    other = model(uid="another", **FULL)
    assert present_revision(other, read_spec(other)).name != written["metadata"]["name"], "of a deleted namesake"


FORGED: dict[str, dict[str, Any]] = {
    "another spec under this label": {"spec": b'{"model":{"source":"demo://other"}}'},
    "another label": {"label": "0123456789"},
    "another name": {"name": "gemma-somebodys"},
    "nothing": {"spec": b"null"},
    "a list": {"spec": b"[1]"},
    "a word": {"spec": b'"model"'},
    "no spec at all": {"spec": b'{"model":{}}'},
    "a spec that cannot be read": {"spec": b'{"model":3}'},
}


@pytest.mark.parametrize("data", [None, {}, {"spec": None}, {"spec": [1]}, {"model": 1}, [1], "spec", 3])
def test_one_that_holds_anything_else_is_read_and_nothing_is_made_of_it(data: Any) -> None:
    item = model()
    spec = read_spec(item)
    written = build_revision(spec, replace(present_revision(item, spec), number=1))
    found = read_revision({**written, "metadata": {**written["metadata"], "uid": "u"}, "data": data})
    assert found.name == written["metadata"]["name"]
    assert spec_of_revision(item, found) is None


@pytest.mark.parametrize("change", FORGED)
def test_nothing_is_made_of_what_is_not_what_its_name_says(change: str) -> None:
    item = model()
    assert spec_of_revision(item, stored(item)) is not None
    assert spec_of_revision(item, replace(stored(item), **FORGED[change])) is None
