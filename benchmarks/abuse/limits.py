"""The limits of memory that the chart sets."""

from __future__ import annotations

from pathlib import Path

import yaml
from kubernetes.utils.quantity import parse_quantity

VALUES = Path(__file__).resolve().parents[2] / "charts" / "plimsoll" / "values.yaml"


def chart_limit(component: str) -> int:
    """The bytes that a pod of `operator` or `gateway` may have."""
    values = yaml.safe_load(VALUES.read_text())
    return byte_count(values[component]["resources"]["limits"]["memory"])


def byte_count(quantity: str) -> int:
    """A Kubernetes quantity (`512Mi`) in bytes."""
    return int(parse_quantity(quantity))  # type: ignore[no-untyped-call]
