"""The metadata of a ScaledObject's trigger: the model, and its target."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from plimsoll_operator.spec.identity import ObjectKey

METRIC = "requests"
TARGET = 4.0
ACTIVE_SECONDS = 60.0
LONGEST_ACTIVE = 86_400.0
OURS = ("activeSeconds", "model", "target")
# Fields for KEDA itself, which it passes on with the others.
KEDAS = frozenset(
    ["scalerAddress", "metricType", "enableTLS", "unsafeSsl", "caCert", "tlsCertFile", "tlsClientCert", "tlsClientKey"]
)
_MOST = 64  # characters of a quoted value


class TriggerError(ValueError):
    """The trigger's metadata are not valid; the message says what to change."""


@dataclass(frozen=True, slots=True)
class Trigger:
    """`target`: requests at a time that a replica should have. The model counts as active while a request is in flight,
    and for `active_seconds` after the last one came.
    """

    model: ObjectKey
    target: float = TARGET
    active_seconds: float = ACTIVE_SECONDS


def read_trigger(name: str, namespace: str, metadata: Mapping[str, str]) -> Trigger:
    """Read the trigger of a ScaledObject, whose model is in the same namespace. Raise TriggerError for bad metadata."""
    if not name or not namespace:
        raise TriggerError("the call has no name or namespace of a ScaledObject")
    if unknown := sorted(key for key in metadata if key not in OURS and key not in KEDAS):
        raise TriggerError(
            f"unknown field {unknown[0][:_MOST]!r} in the trigger's metadata; known are {', '.join(OURS)}"
        )
    model = metadata.get("model", name)
    if not model:
        raise TriggerError("the trigger's 'model' is empty: name a ModelDeployment of the ScaledObject's namespace")
    return Trigger(
        ObjectKey(namespace, model),
        _number(metadata, "target", TARGET, 1e9),
        _number(metadata, "activeSeconds", ACTIVE_SECONDS, LONGEST_ACTIVE),
    )


def _number(metadata: Mapping[str, str], key: str, default: float, most: float) -> float:
    text = metadata.get(key)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= most:
        raise TriggerError(f"the trigger's {key!r} must be a number above 0 and at most {most:g}, not {text[:_MOST]!r}")
    return value
