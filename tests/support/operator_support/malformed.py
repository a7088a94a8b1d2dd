"""Random ModelDeployments with an error: a field of the schema with a value that it cannot have.

Values come from the schema itself (one beyond each bound, every other type), from the subjects of its rules (names,
sources, amounts), and, for parts without a schema, from values that no pod can have.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import yaml
from operator_support.objects import FULL, Json

CRD = next(Path(__file__).parents[3].glob("crds/*modeldeployment*.yaml"))
TYPES: Mapping[str, Any] = {
    "string": "text",
    "integer": 7,
    "number": 1.5,
    "boolean": True,
    "array": [1],
    "object": {"a": 1},
    "null": None,
}
STRINGS = (
    "", " ", "-", "/", "..", "a/../b", "ä", "💥", "a\nb", "a\x00b", "A_B", "x" * 70, "x" * 40000, "0", "-1", "1e9",
    "NaN", "{{x}}", "$(HOME)", "file://", "file:///../etc", "ftp://a/b", "pvc:///x", "pvc://A/b", "hf://only", "demo://",
    "40 GiB", "101%", "0", "-1Gi", "1Xi", "nvidia.com/", "/gpu", "a b", "plimsoll.dev/x",
)  # fmt: skip
NAMES = ("", "A", "1m", "-m", "m-", "m.n", "m_n", "ä", "m" * 53, "m" * 300, "m/n", "m n", 7, None, ["m"], {"m": 1})
POD_NONSENSE: Mapping[str, tuple[Any, ...]] = {
    "affinity": (
        {"nodeAffinity": "near"},
        {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}},
        {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": ""}]}},
        {"nearby": {}},
        {"podAntiAffinity": [1, 2]},
    ),
    "nodeSelector": ({"a b": "c"}, {"": "x"}, {"/": "x"}),
    "labels": ({"a b": "c"}, {"x" * 80: "y"}, {"/": "x"}),
    "annotations": ({"a b": "c"}, {"/": "x"}),
    "volumes": (
        [{"name": "v"}],
        [{"name": "v", "emptyDir": "yes"}],
        [{"name": "v", "noSuchKind": {}}],
        [{"name": "v", "emptyDir": {}, "hostPath": {"path": "/"}}],
        [{"name": "v", "hostPath": {"path": "/etc"}}],
        [{"name": "v", "emptyDir": {"sizeLimit": "-1"}}],
        [{"name": "v", "configMap": {}}],
    ),
    "env": (
        [{"name": "A", "valueFrom": {}}],
        [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s"}}}],
        [{"name": "A", "valueFrom": {"secretKeyRef": "s"}}],
        [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "no.such.field"}}}],
    ),
    "topologySpreadConstraints": ([{"maxSkew": 0}], [{"topologyKey": ""}], [{"nearby": 1}]),
    "envFrom": ([{}], [{"secretRef": {"name": "no/name"}}]),
    "image": ("registry.example/theirs:1", "a b"),
    "runtimeClassName": ("no-such-class",),
    "volumeMounts": ([{"name": "gone", "mountPath": "/data"}], [{"name": "v", "mountPath": "data"}]),
    "tolerations": (
        [{"operator": "Equal"}],
        [{"key": "a b", "operator": "Exists"}],
        [{"effect": "NoExecute", "value": "x"}],
    ),
    "priorityClassName": ("no-such-class", "system-node-critical"),
}  # fmt: skip
RULES: tuple[Json, ...] = (
    {"model": {"source": "demo://x", "revision": "main"}},
    {"runtime": {"maxModelLen": 16, "blockSize": 256}},
    {"runtime": {"attentionBackend": "triton"}, "resources": {}},
    {"template": {"labels": {"plimsoll.dev/pod-hash": "x"}}},
    {"template": {"volumes": [{"name": "cache", "emptyDir": {}}]}},
    {
        "template": {
            "volumeMounts": [{"name": "v", "mountPath": "/cache/x"}],
            "volumes": [{"name": "v", "emptyDir": {}}],
        }
    },
    {"template": {"env": [{"name": "A", "value": "1", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]}},
    {"model": {"source": "demo://x", "servedNames": ["a", "a"]}},
    {"runtime": {"kvMemory": "8GiB"}, "resources": {"memory": "8Gi"}},
    {"runtime": {"kvMemory": "1TiB"}, "resources": {"memory": 4000000000}},
)


@dataclass(frozen=True)
class Malformed:
    """A malformed object. `about`: words of which a rejection must have at least one."""

    name: Any
    spec: Any
    about: tuple[str, ...]


def malformed(random: Random, name: str) -> Malformed:
    """Return one object. `name` is valid and unused."""
    usual: list[Callable[[Random, str], Malformed]] = [_wrong_value, _wrong_value, _pod_nonsense]
    others = [_unknown_field, _missing_field, _broken_rule, _bad_name]
    kinds = usual if random.random() < 0.7 else others
    return random.choice(kinds)(random, name)


def _base(random: Random) -> Json:
    """Return a valid spec, small or large."""
    spec = copy.deepcopy(FULL) if random.random() < 0.5 else {"model": {"source": "demo://gemma-3-270m"}}
    for named in ("priorityClassName", "runtimeClassName"):  # The cluster lacks these objects.
        spec.get("template", {}).pop(named, None)
    return spec


def _wrong_value(random: Random, name: str) -> Malformed:
    path, schema = random.choice(list(_fields(_schema(), ())))
    spec = _base(random)
    _put(spec, path, random.choice(list(_wrong(schema))))
    return Malformed(name, spec, (*_words(path), *_lacking(spec, path)))


def _pod_nonsense(random: Random, name: str) -> Malformed:
    field = random.choice(sorted(POD_NONSENSE))
    spec = _base(random)
    spec["template"] = {field: copy.deepcopy(random.choice(POD_NONSENSE[field]))}
    return Malformed(name, spec, (field.removesuffix("Name"),))


def _unknown_field(random: Random, name: str) -> Malformed:
    spec = _base(random)
    closed = [
        p
        for p, schema in _fields(_schema(), ())
        if "properties" in schema and "x-kubernetes-preserve" not in str(schema)
    ]
    path = random.choice([(), *(p for p in closed if "[]" not in p)])
    _put(spec, (*path, "noSuchField"), 1)
    return Malformed(name, spec, ("noSuchField", *_words(path)))


def _missing_field(random: Random, name: str) -> Malformed:
    spec = _base(random)
    path = random.choice([("model",), ("model", "source")])
    at: Any = spec
    for step in path[:-1]:
        at = at[step]
    del at[path[-1]]
    return Malformed(name, spec, _words(path))


def _broken_rule(random: Random, name: str) -> Malformed:
    change = copy.deepcopy(random.choice(RULES))
    return Malformed(name, {"model": {"source": "demo://x"}, **change}, tuple(change))


def _bad_name(random: Random, _: str) -> Malformed:
    return Malformed(random.choice(NAMES), _base(random), ("name",))


def _schema() -> Json:
    version = yaml.safe_load(CRD.read_text())["spec"]["versions"][0]
    found: Json = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return found


def _fields(schema: Json, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Json]]:
    """Yield every field below; "[]" is an entry of a list, "*" a value of a map."""
    for name, child in schema.get("properties", {}).items():
        yield (*path, name), child
        yield from _fields(child, (*path, name))
    if "items" in schema:
        yield (*path, "[]"), schema["items"]
        yield from _fields(schema["items"], (*path, "[]"))
    if isinstance(schema.get("additionalProperties"), dict):
        yield (*path, "*"), schema["additionalProperties"]


def _wrong(schema: Json) -> Iterator[Any]:
    """Yield values that a field should not accept; a few may be valid."""
    kind = schema.get("type")
    yield from (value for other, value in TYPES.items() if other != kind)
    if kind == "string" or "anyOf" in schema:
        yield from STRINGS
        yield "x" * (schema.get("maxLength", 100) + 1)
    if kind == "integer" or "anyOf" in schema:
        yield from (-1, 0, 2**31, 2**63, 10**30, -(2**63), 1.0, 2.5)
        yield schema.get("minimum", 1) - 1
        yield schema.get("maximum", 1) + 1
    if kind == "array":
        yield from ([], [None], [[]], [{}], [{"name": "a"}, {"name": "a"}])
        yield [{"name": f"a{i}", "mountPath": f"/a{i}"} for i in range(schema.get("maxItems", 16) + 1)]
    if kind == "object":
        yield from ({}, {"": ""}, {f"k{i}": "v" for i in range(schema.get("maxProperties", 99) + 1)})


def _put(spec: Json, path: tuple[str, ...], value: Any) -> None:
    """Set a value, and create the parents that its path needs."""
    at: Any = spec
    for step, following in pairwise(path):
        if step == "[]":
            at.append({})
            at = at[-1]
        else:
            wanted: type = list if following == "[]" else dict
            if not isinstance(at.get(step), wanted):
                at[step] = wanted()
            at = at[step]
    if path[-1] == "[]":
        at.append(value)
    else:
        at["some-key" if path[-1] == "*" else path[-1]] = value


def _lacking(spec: Json, path: tuple[str, ...]) -> Iterator[str]:
    """Yield required fields that parents lack: a rejection may name only these."""
    at, schema = spec, _schema()
    for step in path[:-1]:
        if step in ("[]", "*"):
            return
        at, schema = at[step], schema["properties"][step]
        if isinstance(at, dict):
            yield from (name for name in schema.get("required", ()) if name not in at)


def _words(path: tuple[str, ...]) -> tuple[str, ...]:
    """Return the words that a message may use: the last two fields, or the kind that a field names (PriorityClass)."""
    found = tuple(step for step in path if step not in ("[]", "*"))[-2:] or ("spec",)
    return (*found, *(step.removesuffix("Name") for step in found if step.endswith("Name")))
