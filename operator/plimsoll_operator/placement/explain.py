"""Explains the planner's decision for one model as text."""

from __future__ import annotations

from collections.abc import Iterator

from plimsoll_cluster.keys import ObjectKey
from plimsoll_operator.placement.journal import Journal
from plimsoll_operator.placement.ledger import Known, Slot
from plimsoll_operator.placement.planner import plan
from plimsoll_operator.placement.pool_index import PoolIndex
from plimsoll_operator.placement.records.action import Action, Move, Place, Sleep, Unload, Wake
from plimsoll_operator.placement.records.level import State
from plimsoll_operator.placement.records.pool import PoolState
from plimsoll_operator.placement.units import count, size, span


def explain(state: PoolState, key: ObjectKey) -> str:
    """Return as text: a model's facts, its copies, the hosts compared (best first), the actions and refusals about it,
    and its copies after the plan. Raise KeyError if the pool lacks the model.
    """
    index = PoolIndex(state)
    if key not in index.models:
        raise KeyError(f"the pool has no model {key}; it has {', '.join(map(str, index.models)) or 'none'}")
    journal = Journal(key)
    made = plan(state, journal)
    lines = [*_facts(index, key), "", "Copies:", *_lies(index, key)]
    if journal.lines:
        lines += ["", *journal.lines]
    lines += ["", "Actions:"]
    lines += [f"  {sentence(action)}" for action in made.actions if _concerns(action, key)] or ["  none"]
    lines += [f"  the next plan is due in {span(made.wait)}"] if made.wait is not None else []
    if refused := [refusal for refusal in made.refusals if refusal.model == key]:
        lines += ["", "Refused:", *(f"  {refusal.reason}: {refusal.message}" for refusal in refused)]
    lines += ["", "Copies after the plan:"]
    then = [one for one in made.placements if one.model == key]
    return "\n".join([*lines, *([f"  {one.host}: {one.level}; {one.why}" for one in then] or ["  none"])])


def sentence(action: Action) -> str:
    """Return an action and its reason on one line."""
    match action:
        case Place():
            what = f"place {action.model} on {action.host} as {action.level}"
        case Unload():
            what = f"unload {action.model} from {action.host}"
        case Sleep():
            what = f"put {action.model} on {action.host} to sleep as {action.level}"
        case Wake():
            what = f"wake {action.model} on {action.host}"
        case Move():
            first = f"{action.first.value.lower()} first"
            what = f"move {action.model} from {action.source} to {action.host} as {action.level}, {first}"
    return f"{what} ({action.because}): {action.why}"


def _concerns(action: Action, key: ObjectKey) -> bool:
    return action.model == key or f" {key}" in action.why


def _facts(index: PoolIndex, key: ObjectKey) -> Iterator[str]:
    known = index.models[key]
    model, wanted = known.model, known.model.replicas
    traits = f"priority {model.priority}, weight {model.weight:g}{', pinned' if model.pinned else ''}"
    yield f"{key}, revision {model.revision}: {traits}"
    yield (
        f"  takes {size(known.device)} awake ({size(model.need.kv)} of it the minimum KV cache), {size(known.image)} "
        f"asleep; {span(known.load)} to load, {span(known.wake)} to wake"
    )
    yield f"  replicas: {wanted.desired} awake on demand, {wanted.least} always, at most {wanted.most}"
    yield (
        f"  {60 * known.rate:.2g} requests a minute; {count(known.waiting, 'request')} waiting for "
        f"{span(known.waited)}{_held(known)}; another awake replica has the "
        f"retention value {index.worth(known):.2g} (seconds of loading saved an hour for each GiB)"
    )


def _held(known: Known) -> str:
    return f", {known.held} of them at hosts, which wake it in turn" if known.held else ""


def _lies(index: PoolIndex, key: ObjectKey) -> list[str]:
    return [_copy(index, slot) for slot in index.models[key].slots] or ["  none"]


def _copy(index: PoolIndex, slot: Slot) -> str:
    use = f"{slot.copy.active} in flight, " if slot.copy.active else ""
    used = f"last used {span(max(0.0, index.now - slot.copy.last_used))} ago" if slot.copy.last_used else "never used"
    worth = f", value {index.value(slot):.2g}" if slot.state in (State.RESIDENT, State.IN_HOST) else ""
    old = "" if slot.stays else ", has to leave this host"
    time = slot.ledger.host.time
    told = f" (reported {span(max(0.0, index.now - time))} ago)" if time else ""
    state = f"{slot.state} for {span(max(0.0, index.now - slot.copy.since))}"
    return f"  {slot.ledger.key}: {state}, {use}{used}{worth}{old}{told}"
