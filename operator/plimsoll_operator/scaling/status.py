"""The event and the status fields of a scaling decision."""

from __future__ import annotations

from typing import Any

from plimsoll_operator.scaling.history import write_scaling_status
from plimsoll_operator.scaling.scaler import Decision
from plimsoll_operator.status.reasons import Reason


def news(decision: Decision) -> tuple[Reason, str] | None:
    """Return reason and note of the decision's Kubernetes event; None if the number of wanted replicas has not changed
    or the model is new.
    """
    before, after = decision.before, decision.replicas
    if not decision.changes or before is None:
        return None
    if after == 0:
        reason = Reason.SCALED_TO_ZERO
    elif before == 0:
        reason = Reason.SCALED_FROM_ZERO
    else:
        reason = Reason.SCALED_UP if after > before else Reason.SCALED_DOWN
    return reason, f"from {before} to {after}: {decision.desired_replicas.words}"


def scaling_fields(decision: Decision | None) -> dict[str, Any]:
    """Return {"scaling": ...}, the decision's status field besides `desiredReplicas`; {} without a decision."""
    return {} if decision is None else {"scaling": write_scaling_status(decision.scaling_status)}
