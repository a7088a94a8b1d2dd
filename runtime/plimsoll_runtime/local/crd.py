"""The schema of ModelDeployments: the very file that the cluster gets."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

FILE = "modeldeployments.yaml"
# In a wheel the file is copied beside this module; in a checkout it is at the repository's top.
PLACES = (Path(__file__).parent / "crds", Path(__file__).parents[3] / "crds")

Schema = Mapping[str, Any]


@cache
def load_crd() -> Mapping[str, Any]:
    """The CustomResourceDefinition. Raises FileNotFoundError where the installation is broken."""
    for place in PLACES:
        if (path := place / FILE).is_file():
            crd: dict[str, Any] = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
            return crd
    raise FileNotFoundError(f"{FILE} is missing in {' and '.join(map(str, PLACES))}: reinstall plimsoll-serving")


def api_version() -> str:
    """The apiVersion that objects must have: that of the version which is stored."""
    spec = load_crd()["spec"]
    return f"{spec['group']}/{_version()['name']}"


def kind() -> str:
    """The kind that objects must have."""
    return str(load_crd()["spec"]["names"]["kind"])


def schema() -> Schema:
    """The structural schema of the object."""
    found: Schema = _version()["schema"]["openAPIV3Schema"]
    return found


def child_schema(schema: Schema, key: str) -> Schema | None:
    """The schema of one member of an object; None for a member that the schema does not describe."""
    if key in (properties := schema.get("properties", {})):
        found: Schema = properties[key]
        return found
    others = schema.get("additionalProperties")
    return others if isinstance(others, dict) else None


def _version() -> Mapping[str, Any]:
    return next(version for version in load_crd()["spec"]["versions"] if version["storage"])
