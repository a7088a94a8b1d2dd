"""CPU time for planning 1,000 models on 100 hosts: in steady state, with waiting requests, and after a loss."""

from __future__ import annotations

import statistics
import time
from random import Random

from msgspec.structs import replace

from plimsoll_cluster.keys import ObjectKey
from plimsoll_operator.placement.planner import plan
from plimsoll_operator.placement.records.host import Copy, Host, Sleepers
from plimsoll_operator.placement.records.level import Condition, State
from plimsoll_operator.placement.records.pool import Demand, PoolState
from plimsoll_operator.simulation.trace import GIB, Shape, make

NOW = 1_000_000_000.0
MODELS, HOSTS, LINE, SLEEPERS = 1000, 100, 80 * GIB, 40 * GIB
REPEATS = 9


def measure() -> dict[str, float]:
    """Return CPU seconds of a plan by situation, the median of several."""
    state = pool()
    waiting = tuple(Demand(model.key, 1, NOW - 5) for model in state.models[:20])
    lost = replace(state.hosts[0], condition=Condition.LOST)
    return {
        "steady": _seconds(state),
        "20 models waited for": _seconds(replace(state, demand=waiting)),
        "a host marked lost": _seconds(replace(state, hosts=(lost, *state.hosts[1:]))),
        "a host gone": _seconds(replace(state, hosts=state.hosts[1:])),
    }


def pool() -> PoolState:
    """Return a pool whose hosts are nearly full: each model is awake, an image, or files, as memory allows."""
    random, models = Random(1), make("zipf", Shape(models=MODELS, hours=0.01), 1).models
    device, images = [LINE] * HOSTS, [SLEEPERS] * HOSTS
    lies: list[list[Copy]] = [[] for _ in range(HOSTS)]
    for rank, model in enumerate(random.sample(models, MODELS), 1):
        host, need, rate = random.randrange(HOSTS), model.need, 1 / rank
        used, since = NOW - random.uniform(0, 600), NOW - 500
        copy = Copy(model.key, model.revision, State.ON_DISK, rate=rate, last_used=used, since=since)
        if need.device <= device[host]:
            device[host] -= need.device
            held = {"weights": need.weights, "workspace": need.workspace, "kv": need.kv}
            copy = replace(copy, state=State.RESIDENT, active=random.choice((0, 0, 1)), **held)
        elif need.host <= images[host]:
            images[host] -= need.host
            copy = replace(copy, state=State.IN_HOST, host=need.host)
        lies[host].append(copy)
    hosts = tuple(
        Host(
            ObjectKey("pool", f"host-{index}"),
            f"node-{index}",
            LINE,
            LINE,
            sleepers=Sleepers(SLEEPERS, SLEEPERS - images[index]),
            time=NOW,
            models=tuple(lies[index]),
        )
        for index in range(HOSTS)
    )
    return PoolState(NOW, models, hosts)


def _seconds(state: PoolState) -> float:
    taken = []
    for _ in range(REPEATS):
        before = time.process_time()
        plan(state)
        taken.append(time.process_time() - before)
    return statistics.median(taken)
