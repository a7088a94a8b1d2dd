"""Generated files of the chart are up to date, and the generator refuses values that have no schema."""

import importlib.util
import json
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("chart_generate", ROOT / "charts" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_schema_readme_and_crd_copies_are_up_to_date(generate: ModuleType) -> None:
    assert generate.stale(generate.outputs()) == []


def test_every_crd_has_its_copy(generate: ModuleType) -> None:
    copies = {path.name for path in generate.outputs() if path.parent.name == "crds"}
    assert copies == {path.name for path in (ROOT / "crds").glob("*.yaml")}
    assert "modeldeployments.yaml" in copies


def test_drift_is_noticed_and_repaired(
    generate: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(ROOT / "charts", tmp_path / "charts")
    monkeypatch.setattr(generate, "CHART", tmp_path / "charts" / "plimsoll")
    crds = tmp_path / "charts" / "plimsoll" / "files" / "crds"
    (crds / "modeldeployments.yaml").write_text("changed by hand")
    (crds / "gone.yaml").write_text("its original was deleted")
    assert generate.main(["--check"]) == 1
    message = capsys.readouterr().err
    assert "modeldeployments.yaml is out of date" in message
    assert "gone.yaml" in message
    assert generate.main([]) == 0
    assert generate.main(["--check"]) == 0
    assert not (crds / "gone.yaml").exists()


def test_a_value_becomes_its_schema(generate: ModuleType) -> None:
    (value,) = generate.read_values('# How many,\n# at least.\n# @schema {"minimum": 0}\npods: 2\n')
    assert value.schema() == {"description": "How many, at least.", "type": "integer", "minimum": 0}


def test_several_lines_make_one_schema(generate: ModuleType) -> None:
    lines = [{"additionalProperties": {"properties": {name: {"type": "string"}}}} for name in ("a", "b")]
    text = "".join(f"# @schema {json.dumps(line)}\n" for line in lines)
    (value,) = generate.read_values(f"# Free.\n{text}free: {{}}\n")
    assert value.schema()["additionalProperties"]["properties"].keys() == {"a", "b"}


def test_a_section_refuses_other_keys_and_a_free_map_takes_them(generate: ModuleType) -> None:
    free = '  # Free.\n  # @schema {"additionalProperties": true}\n  c:\n    x: 1\n'
    text = f'# Outer.\na:\n  # Inner.\n  b: ""\n{free}'
    (value,) = generate.read_values(text)
    schema = value.schema()
    assert schema["additionalProperties"] is False
    assert schema["properties"]["c"] == {"description": "Free.", "type": "object", "additionalProperties": True}
    assert [leaf.name for leaf in value.leaves()] == ["a.b", "a.c"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pods: 2\n", "pods: it has no description"),
        ("# Fine.\na:\n  b: 1\n", r"a\.b: it has no description"),
        ("# Pods.\npods: []\n", "pods: a list needs"),
        ("# Labels.\nlabels: {}\n", "labels: an empty map needs"),
        ("# Name.\nname: null\n", "name: the default's type"),
        ("# Just a comment.\n- 1\n", "must be a map"),
    ],
)
def test_what_has_no_schema_is_refused(generate: ModuleType, text: str, message: str) -> None:
    with pytest.raises(generate.ValuesError, match=message):
        generate.read_values(text)


def test_the_schema_is_closed_everywhere(generate: ModuleType) -> None:
    schema = json.loads((ROOT / "charts" / "plimsoll" / "values.schema.json").read_text())

    def check(node: dict[str, object], path: str) -> None:
        assert node.get("description") or path == "values", f"{path} is not described"
        properties = node.get("properties")
        if isinstance(properties, dict):
            assert node["additionalProperties"] is False, f"{path} accepts any key"
            for name, child in properties.items():
                check(child, f"{path}.{name}")

    check(schema, "values")
