"""The schemas of ModelDeployments and RuntimePools: the very files that the cluster gets."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

MODELS, POOLS = "modeldeployments.yaml", "runtimepools.yaml"
# In a wheel the file is copied beside this module; in a checkout it is at the repository's top.
PLACES = (Path(__file__).parent / "crds", Path(__file__).parents[3] / "crds")

Schema = Mapping[str, Any]


@cache
def load_crd(file: str = MODELS) -> Mapping[str, Any]:
    """The CustomResourceDefinition. Raises FileNotFoundError where the installation is broken."""
    for place in PLACES:
        if (path := place / file).is_file():
            crd: dict[str, Any] = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
            return crd
    raise FileNotFoundError(f"{file} is missing in {' and '.join(map(str, PLACES))}: reinstall plimsoll-serving")


def api_version(file: str = MODELS) -> str:
    """The apiVersion that objects must have: that of the version which is stored."""
    spec = load_crd(file)["spec"]
    return f"{spec['group']}/{_version(file)['name']}"


def kind(file: str = MODELS) -> str:
    """The kind that objects must have."""
    return str(load_crd(file)["spec"]["names"]["kind"])


def schema(file: str = MODELS) -> Schema:
    """The structural schema of the object."""
    found: Schema = _version(file)["schema"]["openAPIV3Schema"]
    return found


def child_schema(schema: Schema, key: str) -> Schema | None:
    """The schema of one member of an object; None for a member that the schema does not describe."""
    if key in (properties := schema.get("properties", {})):
        found: Schema = properties[key]
        return found
    others = schema.get("additionalProperties")
    return others if isinstance(others, dict) else None


def _version(file: str) -> Mapping[str, Any]:
    return next(version for version in load_crd(file)["spec"]["versions"] if version["storage"])
