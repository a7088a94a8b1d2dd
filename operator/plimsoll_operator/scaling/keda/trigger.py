"""What a trigger of a ScaledObject asks for: of which model, and what is much of it."""

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
# What a trigger says to KEDA itself: it hands all of it on.
KEDAS = frozenset(
    ["scalerAddress", "metricType", "enableTLS", "unsafeSsl", "caCert", "tlsCertFile", "tlsClientCert", "tlsClientKey"]
)
_MOST = 64  # characters of what is quoted


class TriggerError(ValueError):
    """A trigger's metadata say what cannot be; the message says what, and what to write."""


@dataclass(frozen=True, slots=True)
class Trigger:
    """`target`: requests at a time that a replica should have. The model counts as asked for while a request for it is
    there, and for `active_seconds` after the last one came.
    """

    model: ObjectKey
    target: float = TARGET
    active_seconds: float = ACTIVE_SECONDS


def read_trigger(name: str, namespace: str, metadata: Mapping[str, str]) -> Trigger:
    """Of the ScaledObject of that name. A model is asked for in its own namespace alone. Raises TriggerError."""
    if not name or not namespace:
        raise TriggerError("the question names no ScaledObject and namespace")
    if unknown := sorted(key for key in metadata if key not in OURS and key not in KEDAS):
        raise TriggerError(f"the trigger's metadata have {unknown[0][:_MOST]!r}; known are {', '.join(OURS)}")
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
