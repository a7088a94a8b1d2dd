"""Defaults and profiles of the installation: their precedence, and which pods a change of them replaces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from operator_support.objects import FULL, Json, model, spec_of

from plimsoll_operator.build.controller_revision import (
    build_revision,
    present_revision,
    read_revision,
    spec_of_revision,
)
from plimsoll_operator.build.host import HostKey, build_host
from plimsoll_operator.build.image import Image
from plimsoll_operator.build.model import build_pod
from plimsoll_operator.build.pod_revision import Fit, fits, revision, user_part
from plimsoll_operator.planning.pod_view import moves_off_nodes
from plimsoll_operator.spec.model_deployment import Spec, read_spec
from plimsoll_operator.spec.profiles import NO_PROFILES, Profiles
from plimsoll_operator.spec.profiles_file import ProfilesError, read_profiles
from plimsoll_operator.spec.runtime_pool import read_pool
from plimsoll_operator.spec.template import SpecError

IMAGE = Image("registry.example/plimsoll-runtime:0.1.0", allowed=("registry.example",))
A100: Json = {
    "cpu": 8,
    "memory": "80Gi",
    "accelerator": {"resource": "nvidia.com/gpu"},
    "nodeSelector": {"gpu": "a100"},
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
    "runtimeClassName": "nvidia",
}


@pytest.fixture
def profiles_of(tmp_path: Path) -> Any:
    """Return a function that reads defaults and profiles like the operator."""

    def read(defaults: Json, named: Json | None = None) -> Profiles:
        file = tmp_path / "profiles.json"
        file.write_text(json.dumps({"defaults": defaults, "profiles": named or {}}))
        return read_profiles(file)

    return read


def amounts(values: list[Any]) -> st.SearchStrategy[Any]:
    return st.none() | st.sampled_from(values)


def said(values: Json) -> Json:
    return {name: value for name, value in values.items() if value}


LABELS = st.dictionaries(st.sampled_from("abc"), st.sampled_from("xyz"), max_size=2)
VARIABLES = st.dictionaries(st.sampled_from("ABC"), st.sampled_from("123"), max_size=2).map(
    lambda found: [{"name": name, "value": value} for name, value in found.items()]
)
TAINTS = st.lists(
    st.builds(
        lambda key, effect, value: {"key": key, "effect": effect, "value": value},
        st.sampled_from("ab"),
        st.sampled_from(["NoSchedule", "NoExecute"]),
        st.sampled_from("xy"),
    ),
    max_size=2,
    unique_by=lambda taint: (taint["key"], taint["effect"]),
)
PODS = st.fixed_dictionaries(
    {
        "nodeSelector": LABELS,
        "env": VARIABLES,
        "tolerations": TAINTS,
        "runtimeClassName": amounts(["nvidia", "kata"]),
        "priorityClassName": amounts(["low", "high"]),
        "affinity": st.just({}) | st.just({"nodeAffinity": {}}) | st.just({"podAffinity": {}}),
    }
).map(said)
RESOURCES = st.fixed_dictionaries(
    {
        "cpu": amounts(["1", "2"]),
        "memory": amounts(["1Gi", "2Gi"]),
        "ephemeralStorage": amounts(["1Gi", "2Gi"]),
        "accelerator": st.none() | st.builds(lambda name: {"resource": f"x/{name}", "count": 1}, st.sampled_from("ab")),
    }
).map(said)


def keyed(layer: Json) -> dict[Any, Any]:
    """Return each setting of a layer, by the key with which another layer overrides it."""
    found: dict[Any, Any] = {
        name: value for name, value in layer.items() if name not in ("nodeSelector", "env", "tolerations")
    }
    found |= {("label", key): value for key, value in layer.get("nodeSelector", {}).items()}
    found |= {("variable", entry["name"]): entry for entry in layer.get("env", ())}
    found |= {("taint", entry["key"], entry["effect"]): entry for entry in layer.get("tolerations", ())}
    return found


@given(own=RESOURCES, template=PODS, profile=st.builds(lambda a, b: a | b, RESOURCES, PODS), defaults=PODS)
def test_the_object_wins_over_the_profile_and_the_profile_over_the_defaults(
    own: Json, template: Json, profile: Json, defaults: Json, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.getbasetemp() / "profiles.json"
    file.write_text(json.dumps({"defaults": defaults, "profiles": {"p": profile}}))
    spec = read_spec(model(resources=own | {"profile": "p"}, template=template), read_profiles(file))
    accelerator = spec.accelerator and {"resource": spec.accelerator.resource, "count": spec.accelerator.count}
    found = said(
        {
            "cpu": spec.cpu,
            "memory": spec.memory,
            "ephemeralStorage": spec.ephemeral_storage,
            "accelerator": accelerator,
            "env": list(spec.template.env),
            "tolerations": list(spec.template.tolerations),
            **spec.template.scheduling,
        }
    )
    assert keyed(found) == keyed(defaults) | keyed(profile) | keyed(template) | keyed(own)
    assert len(spec.template.env) == len({entry["name"] for entry in spec.template.env})
    assert spec.own is None or user_part(spec) == user_part(spec.own)


def test_a_profile_is_what_its_pods_are_made_of(profiles_of: Any) -> None:
    profiles = profiles_of({"env": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}]}, {"a100": A100})
    body = build_pod(read_spec(model(resources={"profile": "a100", "cpu": "4"}), profiles), IMAGE, "x1")["spec"]
    (container,) = body["containers"]
    assert container["resources"]["requests"] == {"cpu": "4", "memory": "80Gi", "nvidia.com/gpu": "1"}
    assert (body["nodeSelector"], body["runtimeClassName"]) == ({"gpu": "a100"}, "nvidia")
    assert A100["tolerations"][0] in body["tolerations"]
    assert {"name": "HTTPS_PROXY", "value": "http://proxy:3128"} in container["env"]
    assert container["args"][-2:] == ["--device", "cuda"]


def test_pools_have_profiles_too(profiles_of: Any) -> None:
    pool = model("p") | {"spec": {"resources": {"profile": "a100"}, "memory": {"sleepers": "1Gi"}}}
    body = build_host(read_pool(pool, profiles_of({}, {"a100": A100})), IMAGE, HostKey(b"k" * 32), "x1")["spec"]
    assert body["containers"][0]["resources"]["limits"]["memory"] == "80Gi"
    with pytest.raises(SpecError, match=r"resources\.memory is missing: the models of a pool share it"):
        read_pool(pool, profiles_of({}, {"a100": {"cpu": 1}}))


def test_a_model_in_a_pool_takes_nothing_of_them(profiles_of: Any) -> None:
    item = model(placement={"pool": "shared"})
    assert read_spec(item, profiles_of({"nodeSelector": {"a": "b"}})) == read_spec(item)


@pytest.mark.parametrize("named", [{}, {"l4": {}, "cpu": {}}])
def test_a_profile_that_is_not_there(profiles_of: Any, named: Json) -> None:
    names = "cpu, l4" if named else "it has none"
    with pytest.raises(SpecError, match=rf"resources\.profile a100 is not a profile of this installation \({names}\)"):
        read_spec(model(resources={"profile": "a100"}), profiles_of({}, named))


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"runtime": {"kvMemory": "2Gi"}}, "kvMemory 2Gi leaves nothing of resources.memory 1Gi"),
        ({"runtime": {"attentionBackend": "triton"}}, "needs an accelerator, and resources.profile small has none"),
    ],
)
def test_what_the_schema_cannot_see_in_a_profile(profiles_of: Any, spec: Json, words: str) -> None:
    profiles = profiles_of({}, {"small": {"memory": "1Gi"}, "gpu": A100 | {"memory": "1Gi"}})
    with pytest.raises(SpecError, match=words.replace(".", r"\.")):
        read_spec(model(resources={"profile": "small"}, **spec), profiles)
    read_spec(model(resources={"profile": "gpu"}, **spec), profiles)


def test_a_token_of_the_model_wins_over_a_default_variable(profiles_of: Any) -> None:
    profiles = profiles_of({"env": [{"name": "HF_TOKEN", "value": "everybody's"}]})
    source = {"source": "hf://org/private", "tokenSecret": {"name": "hub", "key": "token"}}
    (container,) = build_pod(read_spec(model(model=source), profiles), IMAGE, "a")["spec"]["containers"]
    (token,) = [entry for entry in container["env"] if entry["name"] == "HF_TOKEN"]
    assert token["valueFrom"] == {"secretKeyRef": {"name": "hub", "key": "token"}}


def test_tolerations_by_default_count_where_nodes_are_drained(profiles_of: Any) -> None:
    assert moves_off_nodes(read_spec(model()))
    assert not moves_off_nodes(read_spec(model(), profiles_of({"tolerations": [{"operator": "Exists"}]})))


def test_a_variable_may_refer_to_a_default_one(profiles_of: Any) -> None:
    mine = {"name": "MINE", "value": "$(SHARED)/mine"}
    shared = {"name": "SHARED", "value": "/shared"}
    spec = read_spec(model(template={"env": [mine]}), profiles_of({"env": [shared]}))
    assert spec.template.env == (shared, mine)


SPECS: list[Json] = [
    {},
    FULL,
    {"model": {"source": "pvc://weights"}, "resources": {"memory": 8589934592}},
    {"model": {"source": "hf://org/private", "tokenSecret": {"name": "hub", "key": "token"}}},
]


@pytest.mark.parametrize("body", SPECS)
def test_without_defaults_no_pod_has_another_label(profiles_of: Any, body: Json) -> None:
    item = model(**body)
    for nothing in (NO_PROFILES, profiles_of({}), profiles_of({}, {"a100": A100})):
        assert read_spec(item, nothing) == read_spec(item)
        assert revision(read_spec(item, nothing), IMAGE) == revision(read_spec(item), IMAGE)


def test_labels_are_those_that_pods_have_today() -> None:
    """Recorded labels: an unintended change of them would replace all pods."""
    assert revision(spec_of(), IMAGE) == "fcf83afd28-cd626f8302-2"
    assert revision(spec_of(**FULL), IMAGE) == "77cf132f96-dff4a39d66-2"
    pool = read_pool(model("p") | {"spec": {"resources": {"memory": "2Gi"}, "memory": {"sleepers": "1Gi"}}})
    assert revision(pool, IMAGE, "mark") == "6758de555c-ed4e87f16a-2"


def fit(before: Spec, after: Spec) -> Fit:
    return fits(after, IMAGE)(revision(before, IMAGE))


def test_a_changed_default_replaces_pods_in_turns_and_a_changed_spec_at_once(profiles_of: Any) -> None:
    plain, named = model(), model(resources={"profile": "a100"})
    before = profiles_of({}, {"a100": A100})
    after = profiles_of({"nodeSelector": {"pool": "models"}}, {"a100": A100 | {"memory": "70Gi"}})
    assert fit(read_spec(plain, before), read_spec(plain, after)) is Fit.OUTDATED
    assert fit(read_spec(named, before), read_spec(named, after)) is Fit.OUTDATED
    assert fit(read_spec(plain, after), read_spec(named, after)) is Fit.OLDER
    assert fit(read_spec(named, after), read_spec(named, after)) is Fit.CURRENT


def test_a_default_that_an_object_overrides_replaces_none_of_its_pods(profiles_of: Any) -> None:
    item = model(template={"nodeSelector": {"pool": "mine"}})
    before, after = (profiles_of({"nodeSelector": {"pool": name}}) for name in ("a", "b"))
    assert fit(read_spec(item, before), read_spec(item, after)) is Fit.CURRENT


def test_a_stored_revision_is_made_again_with_the_profile_as_it_is_now(profiles_of: Any) -> None:
    item, present = model(resources={"profile": "a100"}), profiles_of({}, {"a100": A100})
    spec = read_spec(item, present)
    stored = build_revision(spec, present_revision(item, spec))
    stored["metadata"] |= {"uid": "u"}
    again = spec_of_revision(model(), read_revision(stored), present)
    assert again is not None
    assert build_pod(again, IMAGE, "a") == build_pod(spec, IMAGE, "a")
    assert spec_of_revision(model(), read_revision(stored), profiles_of({})) is None, "the profile is gone"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"defaults": {"nodeSelectr": {}}}', "unknown field `nodeSelectr`"),
        ('{"profiles": {"a": {"memory": []}}}', r"profiles\[\.\.\.\]\.memory"),
        ("[", "Expected `object`"),
    ],
)
def test_a_file_that_is_wrong(tmp_path: Path, content: str, words: str) -> None:
    file = tmp_path / "profiles.json"
    file.write_text(content)
    with pytest.raises(ProfilesError, match=words):
        read_profiles(file)
    with pytest.raises(ProfilesError, match="No such file"):
        read_profiles(tmp_path / "none.json")
