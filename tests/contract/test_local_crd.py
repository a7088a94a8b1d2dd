"""Laptop mode and the cluster's schema: laptop mode evaluates every rule, and every runtime field is an existing
flag.
"""

from __future__ import annotations

import io
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from operator_support.verdicts import VERDICTS, Verdict

from plimsoll_runtime.cli.main import build_parser
from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.local.manifest import crd
from plimsoll_runtime.local.manifest.cel_rules import compiled
from plimsoll_runtime.local.manifest.manifest import Document, read_documents
from plimsoll_runtime.local.manifest.validation import RefusedError, admit
from plimsoll_runtime.local.model import serve_arguments

REPOSITORY = Path(__file__).parents[2]
MALFORMED = 200


def minimal(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": crd.api_version(),
        "kind": crd.kind(),
        "metadata": {"name": "gemma"},
        "spec": {"model": {"source": "demo://gemma-3-270m"}, **spec},
    }


def rules(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        yield from node.get("x-kubernetes-validations", [])
        for inner in node.values():
            yield from rules(inner)
    elif isinstance(node, list):
        for inner in node:
            yield from rules(inner)


def runtime_fields() -> dict[str, Any]:
    fields: dict[str, Any] = crd.schema()["properties"]["spec"]["properties"]["runtime"]["properties"]
    return fields


def test_the_schema_is_the_clusters_own() -> None:
    assert (crd.kind(), crd.api_version()) == ("ModelDeployment", "plimsoll.dev/v1alpha1")
    assert crd.PLACES[1] == REPOSITORY / "crds"
    assert (crd.kind(crd.POOLS), crd.api_version(crd.POOLS)) == ("RuntimePool", "plimsoll.dev/v1alpha1")
    assert (crd.PLACES[1] / crd.MODELS).is_file()


@pytest.mark.parametrize("rule", [*rules(crd.schema()), *rules(crd.schema(crd.POOLS))], ids=lambda rule: rule["rule"])
def test_every_rule_can_be_evaluated_here(rule: dict[str, Any]) -> None:
    compiled(rule["rule"])
    if "messageExpression" in rule:
        compiled(rule["messageExpression"])


@pytest.mark.parametrize("path", sorted((REPOSITORY / "examples").glob("*.yaml")), ids=lambda path: path.name)
def test_the_examples_are_accepted(path: Path) -> None:
    for body in yaml.safe_load_all(path.read_text()):
        if body["kind"] == "ModelDeployment":  # the API server's own tests cover the other kinds
            admit(Document(path.name, body))


def test_the_readmes_first_deployment_is_accepted() -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", (REPOSITORY / "README.md").read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        admit(Document("README.md", yaml.safe_load(block)))


@pytest.mark.matrix(17)
@pytest.mark.parametrize("verdict", VERDICTS, ids=str)
def test_laptop_mode_says_what_the_api_server_says(verdict: Verdict) -> None:
    if verdict.refusal is None:
        admit(Document("f", minimal(**verdict.spec)))
        return
    with pytest.raises(RefusedError) as refused:
        admit(Document("f", minimal(**verdict.spec)))
    assert verdict.refusal in str(refused.value)


SAMPLES: dict[str, Any] = {"kvMemory": "40%", "revision": "main", "toolFormat": "hermes", "reasoningFormat": "think"}


def samples(field: str) -> list[Any]:
    """Return values that the schema accepts: all of an enumeration, the ends of a range, or one."""
    schema = runtime_fields()[field]
    if field in SAMPLES:
        return [SAMPLES[field]]
    if "enum" in schema:
        return list(schema["enum"])
    return [True, False] if schema["type"] == "boolean" else [schema["minimum"], schema["maximum"]]


@pytest.mark.matrix(19)
@pytest.mark.parametrize(
    ("field", "value"), [(field, value) for field in sorted(runtime_fields()) for value in samples(field)]
)
def test_every_runtime_field_is_a_flag_of_serve(field: str, value: Any) -> None:
    accelerator = {"accelerator": {"resource": "nvidia.com/gpu"}}
    spec = admit(Document("f", minimal(runtime={field: value}, resources=accelerator)))["spec"]
    parsed = vars(build_parser().parse_args(["serve", *serve_arguments("gemma", spec)]))
    name = re.sub(r"[A-Z]", lambda letter: f"_{letter[0].lower()}", field)
    assert parsed[name] == value
    assert parsed["model"] == "demo://gemma-3-270m"
    assert parsed["name"] == ["gemma"]


def test_a_policy_that_there_is_not_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(RefusedError) as caught:
        admit(Document("f", minimal(runtime={"policy": "best"})))
    known = '"fcfs", "priority", "sjf", "prefix", "deadline"'
    assert f'spec.runtime.policy: Unsupported value: "best": supported values: {known}\n' in str(caught.value)


def test_a_spec_without_runtime_says_nothing_to_serve() -> None:
    """Defaults are defined in the runtime: the schema's must not differ."""
    spec = admit(Document("f", minimal()))["spec"]
    parsed = vars(build_parser().parse_args(["serve", *serve_arguments("gemma", spec)]))
    plain = vars(build_parser().parse_args(["serve", "demo://gemma-3-270m", "--name", "gemma"]))
    assert parsed == plain


VALUES: list[Any] = [
    None,
    True,
    -1,
    0,
    2**63,
    1.5,
    "",
    "x",
    "demo://x",
    "../..",
    "a" * 70_000,
    [],
    [None],
    {},
    {"a": 1},
    "🦆",
]


def mutate(rng: random.Random, node: Any) -> Any:
    """Change, add or remove something at a random place."""
    if isinstance(node, dict) and node and rng.random() < 0.8:
        key = rng.choice(sorted(node))
        return {**node, key: mutate(rng, node[key])}
    if isinstance(node, dict):
        choice = rng.random()
        if choice < 0.4 and node:
            gone = rng.choice(sorted(node))
            return {key: value for key, value in node.items() if key != gone}
        return {**node, rng.choice(["foo", "model", "spec", "replicas", "name", ""]): rng.choice(VALUES)}
    if isinstance(node, list) and node and rng.random() < 0.5:
        return [*node, mutate(rng, node[0])]
    return rng.choice(VALUES)


def test_malformed_objects_are_refused_with_a_reason() -> None:
    rng = random.Random(270)
    whole = minimal(
        replicas=2,
        runtime={"maxModelLen": 4096, "kvMemory": "40%", "prefixCaching": False, "dtype": "float32"},
        resources={"cpu": "4", "memory": "8Gi"},
        template={"labels": {"a": "b"}, "env": [{"name": "A", "value": "1"}], "nodeSelector": {"a": "b"}},
    )
    admit(Document("f", whole))
    reasons: list[list[str]] = []
    for _ in range(MALFORMED):
        body = whole
        for _ in range(rng.randrange(1, 4)):
            body = mutate(rng, body)
        try:
            for document in read_documents(["-"], io.StringIO(json.dumps(body))):
                admit(document)
        except RefusedError as error:
            reasons.append(error.problems)
        except UsageError as error:
            reasons.append([str(error)])
    assert len(reasons) > MALFORMED * 0.8
    assert all(problems and all(len(problem) > 10 for problem in problems) for problems in reasons)
