"""Refuses models that the pool's present hosts can never hold, with the numbers."""

from __future__ import annotations

from collections.abc import Mapping

from plimsoll_operator.placement.ledger import Known, Ledger
from plimsoll_operator.placement.plan_builder import PlanBuilder
from plimsoll_operator.placement.records.plan import Refused
from plimsoll_operator.placement.units import count, size


def refuse_infeasible(builder: PlanBuilder) -> None:
    """Refuse models that fit on no host, and pinned models that do not fit together."""
    ledgers = list(builder.index.ledgers.values())
    largest: dict[str, int] = {}
    for ledger in ledgers:
        for device in ("", ledger.host.device):
            largest[device] = max(largest.get(device, 0), _own(ledger))
    for known in builder.index.models.values():
        if not known.model.stopped:
            _check(builder, known, largest)
    _pack(builder, ledgers)
    builder.lasting = dict(builder.refusals)


def _check(builder: PlanBuilder, known: Known, largest: Mapping[str, int]) -> None:
    """Refuse a model that no host can hold. `largest`: device class ("" for any) -> the most device memory that a host
    of this class has for models.
    """
    model = known.model
    if len(model.needs) > 1:
        pods = len(model.needs)
        message = f"a replica of {pods} pods cannot be placed in a pool: remove spec.placement"
        return builder.refuse(known, Refused.GROUPS, message, {"pods": pods})
    if not largest:
        return builder.refuse(known, Refused.NO_HOSTS, "the pool has no host: raise its spec.replicas", {"hosts": 0})
    if model.device not in largest:
        classes = ", ".join(sorted(filter(None, largest))) or "none"
        message = f"it needs a device of class {model.device}, and the pool has {classes}"
        return builder.refuse(known, Refused.NO_DEVICE, message, {"hosts": 0})
    most = largest[model.device]
    if known.device > most:
        need = model.need
        message = (
            f"it needs {size(known.device)} (weights and workspace {size(known.device - need.kv)}, minimum KV cache "
            f"{size(need.kv)}), and the largest host has {size(most)} for models: lower runtime.kvMemory, "
            "quantise it, or raise the pool's resources"
        )
        builder.refuse(known, Refused.TOO_LARGE, message, {"need": known.device, "largest": most})
    return None


def _pack(builder: PlanBuilder, ledgers: list[Ledger]) -> None:
    """Refuse pinned models that do not fit together. Pack them by priority, then the largest first: each onto a host
    that has it, else onto the emptiest.
    """
    pinned = [known for known in builder.index.models.values() if known.model.pinned and not known.model.stopped]
    pinned = [known for known in pinned if known.model.key not in builder.refusals]
    left = {ledger.key: _own(ledger) for ledger in ledgers}
    for known in sorted(pinned, key=lambda known: (-known.model.priority, -known.device, known.model.key)):
        homes = {slot.ledger.key for slot in known.slots}
        fitting = [
            ledger
            for ledger in ledgers
            if known.model.device in ("", ledger.host.device) and left[ledger.key] >= known.device
        ]
        if fitting:
            best = max(fitting, key=lambda ledger: (ledger.key in homes, left[ledger.key]))
            left[best.key] -= known.device
        else:
            together, lines = sum(one.device for one in pinned), sum(map(_own, ledgers))
            message = (
                f"the pinned models need {size(together)} together, and {count(len(ledgers), 'host')} with "
                f"{size(lines)} for models leave at most {size(max(left.values()))} on one host for its "
                f"{size(known.device)}: unpin one, or raise the pool's replicas or resources"
            )
            numbers = {"need": known.device, "pinned": together, "lines": lines, "left": max(left.values())}
            builder.refuse(known, Refused.PINNED_BEYOND_LINE, message, numbers)


def _own(ledger: Ledger) -> int:
    """Return the bytes of device memory that a host without models has for them."""
    return ledger.host.line - ledger.host.reserved
