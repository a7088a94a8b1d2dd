"""Pools made up by hypothesis: small enough that memory is short, with everything that may be odd about them."""

from __future__ import annotations

from hypothesis import strategies as st

from plimsoll_cluster.keys import ObjectKey
from plimsoll_operator.placement.records.host import Copy, Host, Sleepers
from plimsoll_operator.placement.records.level import Condition, Pressure, Spread, State
from plimsoll_operator.placement.records.model import Model, Need, Replicas
from plimsoll_operator.placement.records.pool import Demand, PoolState

NOW = 1_000_000.0
MODELS = tuple(ObjectKey("team", f"m{number}") for number in range(7))
HOSTS = tuple(ObjectKey("pool", f"host-{number}") for number in range(4))
STRANGER = ObjectKey("team", "stranger")


@st.composite
def replicas(draw: st.DrawFn) -> Replicas:
    """Any range, stopped ones among them."""
    most = draw(st.sampled_from([1, 1, 1, 2, 3, 0]))
    return Replicas(draw(st.integers(0, most)), draw(st.integers(0, most)), most)


def models(key: ObjectKey) -> st.SearchStrategy[Model]:
    """A model of some ten bytes."""
    return st.builds(
        Model,
        key=st.just(key),
        revision=st.sampled_from(["a", "a", "a", "b"]),
        needs=st.tuples(st.builds(Need, st.integers(1, 45), st.integers(0, 3), st.integers(0, 5), st.integers(0, 40))),
        replicas=replicas(),
        priority=st.sampled_from([0, 0, 0, 1, -1]),
        weight=st.sampled_from([1.0, 1.0, 4.0]),
        pinned=st.sampled_from([False, False, False, True]),
        device=st.sampled_from(["", "", "", "cpu", "gpu"]),
        spread=st.sampled_from(Spread),
        near=st.lists(st.sampled_from(MODELS), max_size=1).map(tuple),
        apart=st.lists(st.sampled_from(MODELS), max_size=1).map(tuple),
        moved=st.sampled_from([None, NOW - 10, NOW - 1000]),
    )


@st.composite
def copies(draw: st.DrawFn, key: ObjectKey) -> Copy:
    """A model somewhere, at any moment of its life."""
    state = draw(st.sampled_from([State.RESIDENT, State.RESIDENT, State.IN_HOST, State.ON_DISK, *State]))
    return Copy(
        key,
        draw(st.sampled_from(["a", "a", "a", "b"])),
        state,
        weights=draw(st.integers(1, 45)) if state.on_device else draw(st.sampled_from([0, 20])),
        workspace=draw(st.integers(0, 3)),
        kv=draw(st.integers(0, 12)) if state.on_device else 0,
        host=draw(st.integers(1, 40)) if state is State.IN_HOST else 0,
        active=draw(st.sampled_from([0, 0, 2])) if state in (State.RESIDENT, State.DRAINING) else 0,
        waiting=draw(st.sampled_from([0, 0, 0, 1])) if state is not State.RESIDENT else 0,
        rate=draw(st.sampled_from([0.0, 0.001, 0.01, 0.5])),
        last_used=NOW - draw(st.integers(0, 1000)),
        since=NOW - draw(st.sampled_from([1, 29, 31, 500])),
        load_seconds=draw(st.sampled_from([0.0, 4.0])),
        failures=1,
        retry=draw(st.sampled_from([0.0, 0.0, 0.0, NOW + 20])),
        going=draw(st.sampled_from([False] * 9 + [True])),
    )


@st.composite
def hosts(draw: st.DrawFn, key: ObjectKey, lying: bool = True) -> Host:
    """A host that holds no more than it can, unless it is `lying` (or its line was lowered)."""
    found: list[Copy] = []
    line, sleepers, reserved = draw(st.integers(20, 100)), draw(st.integers(0, 60)), draw(st.integers(0, 5))
    device, images = line - reserved, sleepers
    overdrawn = lying and draw(st.sampled_from([False] * 4 + [True]))
    for name in draw(st.lists(st.sampled_from([*MODELS, STRANGER]), max_size=5, unique=True)):
        copy = draw(copies(name))
        takes = copy.weights + copy.workspace + max(copy.kv, 5) if copy.state.on_device or copy.going else 0
        takes = max(takes, 53) if takes and not copy.weights else takes
        if overdrawn or (takes <= device and copy.host <= images):
            found.append(copy)
            device, images = device - takes, images - copy.host
    return Host(
        key,
        node=f"node-{draw(st.integers(0, 2))}",
        zone=draw(st.sampled_from(["z1", "z2"])),
        capacity=120,
        line=line,
        reserved=reserved,
        device=draw(st.sampled_from(["cpu", "cpu", "cpu", "gpu"])),
        pressure=draw(st.sampled_from([Pressure.NONE, Pressure.NONE, *Pressure])),
        sleepers=Sleepers(sleepers, sum(copy.host for copy in found) + draw(st.sampled_from([0, 0, 3]))),
        condition=draw(st.sampled_from([Condition.READY] * 4 + list(Condition))),
        instance="one",
        sequence=1,
        time=NOW - draw(st.sampled_from([0, 0, 40])),
        models=tuple(found),
    )


demands = st.dictionaries(
    st.sampled_from([*MODELS, STRANGER]),
    st.tuples(st.integers(0, 3), st.sampled_from([0.0, NOW - 5, NOW - 31]), st.sampled_from([0.0, 0.2])),
    max_size=3,
).map(lambda found: tuple(Demand(key, *entry) for key, entry in found.items()))


@st.composite
def pools(draw: st.DrawFn) -> PoolState:
    """All of it together."""
    return PoolState(
        NOW,
        models=tuple(draw(models(key)) for key in draw(st.lists(st.sampled_from(MODELS), unique=True))),
        hosts=tuple(draw(hosts(key)) for key in draw(st.lists(st.sampled_from(HOSTS), unique=True))),
        demand=draw(demands),
    )
