from __future__ import annotations

import io
import itertools
from typing import TYPE_CHECKING, Any

import pytest
from tests.unit.local.conftest import thing

from plimsoll_runtime.local.manifest.manifest import Document, read_documents
from plimsoll_runtime.local.manifest.validation import RefusedError, admit

if TYPE_CHECKING:
    from tests.unit.local.conftest import Refusals

NOT_CHECKED = "rules over several fields were not checked; correct these errors first"
# Recorded from kube-apiserver 1.34.3, which had the schema of conftest.py.
CASES: list[tuple[dict[str, Any], str]] = [
    (thing(low=-1), "spec.low: Invalid value: -1: spec.low in body should be greater than or equal to 0"),
    (thing(low=11), "spec.low: Invalid value: 11: spec.low in body should be less than or equal to 10"),
    (thing(high=100), "spec.high: Invalid value: 100: spec.high in body should be less than 100"),
    (thing(low="x"), 'spec.low: Invalid value: "string": spec.low in body must be of type integer: "string"'),
    (thing(low=1.5), 'spec.low: Invalid value: "number": spec.low in body must be of type integer: "number"'),
    (thing(low=True), 'spec.low: Invalid value: "boolean": spec.low in body must be of type integer: "boolean"'),
    (thing(env={}), 'spec.env: Invalid value: "object": spec.env in body must be of type array: "object"'),
    (
        thing(size=[]),
        'spec.size: Invalid value: "array": spec.size in body must be of type integer,string: "array"',
    ),
    (thing(kind="huge"), 'spec.kind: Unsupported value: "huge": supported values: "small", "large"'),
    (thing(ratio=0.3), "spec.ratio: Invalid value: 0.3: spec.ratio in body should be a multiple of 0.5"),
    (thing(model={}), "spec.model.source: Required value"),
    (
        thing(model={"source": "s3://x"}),
        "spec.model.source: Invalid value: \"s3://x\": spec.model.source in body should match '^(demo|hf)://.+$'",
    ),
    (thing(model={"source": "hf://" + "x" * 20}), "spec.model.source: Too long: may not be more than 20 bytes"),
    (
        thing(model={"source": "hf://x", "names": list("abcd")}),
        "spec.model.names: Too many: 4: must have at most 3 items",
    ),
    (
        thing(model={"source": "hf://x", "names": []}),
        "spec.model.names: Invalid value: 0: spec.model.names in body should have at least 1 items",
    ),
    (thing(model={"source": "hf://x", "names": ["a", "a"]}), 'spec.model.names[1]: Duplicate value: "a"'),
    (thing(env=[{"name": "a"}, {"name": "a"}]), 'spec.env[1]: Duplicate value: {"name":"a"}'),
    (thing(env=[{"name": "a"}, {}]), "spec.env[1].name: Required value"),
    (thing(tags={"a": "1", "b": "2", "c": "3"}), "spec.tags: Too many: 3: must have at most 2 items"),
    (thing(tags={"a": "123456"}), "spec.tags.a: Too long: may not be more than 5 bytes"),
    (thing(low=5, high=4), 'spec: Invalid value: "object": low is above high'),
    (
        thing(env=[{"name": "a", "value": "1", "valueFrom": {}}]),
        "spec.env[0].valueFrom: Forbidden: not both for a",
    ),
]


@pytest.mark.parametrize(("body", "line"), CASES)
def test_an_error_in_the_api_servers_words(refusals: Refusals, body: dict[str, Any], line: str) -> None:
    (problem,) = refusals(body)
    title, *errors = [part for part in problem.split("\n") if not part.startswith("    ")]
    if errors:
        assert title == 'f.yaml: The Thing "t" is invalid:'
        assert errors == [f"* {line}", f"* {NOT_CHECKED}"]
    else:
        assert title == f'f.yaml: The Thing "t" is invalid: {line}'


FILE = """apiVersion: example.dev/v1
kind: Thing
metadata: {name: t}
spec:
  model:
    source: demo://x
    nams: [a]
  low: 4k
  size: []
  env:
  - name: 5
  - value: x
  tags: {a.b/c: 1}
"""


def test_the_line_of_the_file_and_what_may_be_there(small_crd: None) -> None:
    (document,) = read_documents(["-"], io.StringIO(FILE))
    with pytest.raises(RefusedError) as refused:
        admit(document)
    unknown, invalid = (problem.splitlines() for problem in refused.value.problems)
    assert unknown[1:] == ["    in line 7. Did you mean 'names'?"]
    below = {line.split(": ")[0]: advice for line, advice in itertools.pairwise(invalid) if line.startswith("* ")}
    assert below == {
        "* spec.env[0].name": "    line 11 has 5; write text (put it in quotes)",
        "* spec.env[1].name": "    in line 12",
        "* spec.low": '    line 8 has "4k"; write a whole number from 0 to 10',
        "* spec.size": "    line 9 has []; write a whole number or text (put it in quotes)",
        "* spec.tags.a.b/c": "    line 13 has 1; write text (put it in quotes)",
    }


def test_a_file_of_aliases_has_as_many_lines_as_it_has() -> None:
    """Each alias repeats the previous one twice: expanded, they would have a billion lines."""
    text = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 31))
    (document,) = read_documents(["-"], io.StringIO(text))
    assert document.lines["a30"] == 31
    assert len(document.lines) < 100


def test_a_valid_object_gets_its_defaults(small_crd: None) -> None:
    body = thing(maybe=None, low=None, anything={"x": None})
    spec = admit(Document("f.yaml", body))["spec"]
    assert spec["kind"] == "small"
    assert spec["nested"] == {"active": True}
    assert spec["maybe"] is None
    assert "low" not in spec
    assert spec["anything"] == {"x": None}
    assert "kind" not in body["spec"]


def test_null_takes_the_default(small_crd: None) -> None:
    assert admit(Document("f.yaml", thing(kind=None, nested={"active": None})))["spec"]["nested"] == {"active": True}


def test_unknown_fields_are_all_named(refusals: Refusals) -> None:
    body = thing(foo=1, model={"source": "hf://x", "bar": {"deep": 1}}, env=[{"name": "a", "nam": "b"}])
    body["metadata"]["labls"] = {}
    body["extra"] = 1
    assert refusals(body) == [
        'f.yaml: Thing "t": strict decoding error: unknown field "metadata.labls", '
        'unknown field "spec.model.bar", unknown field "spec.foo", unknown field "spec.env[0].nam", '
        'unknown field "extra"\n'
        "    metadata.labls. Did you mean 'labels'?\n"
        "    spec.env[0].nam. Did you mean 'name'?"
    ]


def test_everything_is_said_at_once(refusals: Refusals) -> None:
    unknown, invalid = refusals(thing(foo=1, low=-1, high=1000))
    assert "unknown field" in unknown
    assert [line.split(":")[0] for line in invalid.split("\n")[1:]] == ["* spec.high", "* spec.low"]


def test_rules_wait_until_the_fields_are_right(refusals: Refusals) -> None:
    (problem,) = refusals(thing(low=5, high=4, kind="huge"))
    assert "low is above high" not in problem
    assert problem.endswith(f"* {NOT_CHECKED}")
    assert "low is above high" in refusals(thing(low=-5, high=-6))[0]


@pytest.mark.parametrize(
    ("metadata", "what"),
    [
        (None, "metadata.name: Required value: name or generateName is required"),
        ({}, "metadata.name: Required value: name or generateName is required"),
        ({"name": "Big"}, 'metadata.name: Invalid value: "Big": a lowercase RFC 1123 subdomain must consist'),
        ({"name": 1}, "metadata.name: Invalid value: 1"),
        ({"name": "a" * 254}, "must be no more than 253 characters"),
        (
            {"name": "a", "namespace": "a.b"},
            'metadata.namespace: Invalid value: "a.b": a lowercase RFC 1123 label',
        ),
        ([], "metadata: Invalid value"),
    ],
)
def test_names(refusals: Refusals, metadata: Any, what: str) -> None:
    assert what in "\n".join(refusals(thing() | {"metadata": metadata}))


@pytest.mark.parametrize("change", [{"kind": "Pod"}, {"apiVersion": "v1"}, {"kind": None}, {"apiVersion": ["x"]}])
def test_other_kinds(refusals: Refusals, change: dict[str, Any]) -> None:
    (problem,) = refusals(thing() | change)
    assert "no matches for kind" in problem
    assert "takes Thing and Thing of example.dev/v1" in problem


@pytest.mark.parametrize("spec", [None, [], "x", 3])
def test_a_spec_that_is_no_object(refusals: Refusals, spec: Any) -> None:
    assert any("spec" in line for line in refusals(thing() | {"spec": spec}))
