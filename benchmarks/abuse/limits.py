"""The memory limits that the chart sets."""

from __future__ import annotations

from pathlib import Path

import yaml
from kubernetes.utils.quantity import parse_quantity

VALUES = Path(__file__).resolve().parents[2] / "charts" / "plimsoll" / "values.yaml"


def chart_limit(component: str) -> int:
    """Return the memory limit of a pod of `operator` or `gateway`, in bytes."""
    values = yaml.safe_load(VALUES.read_text())
    return byte_count(values[component]["resources"]["limits"]["memory"])


def byte_count(quantity: str) -> int:
    """Convert a Kubernetes quantity (`512Mi`) to bytes."""
    return int(parse_quantity(quantity))  # type: ignore[no-untyped-call]
