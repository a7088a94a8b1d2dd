"""The output of `plimsoll explain` for a pool, from a cluster's objects alone."""

from __future__ import annotations

from operator_support.pooled import POOL, Process, World, run
from operator_support.server import NAMESPACE

from plimsoll_operator.placement.explain import explain
from plimsoll_operator.pools.snapshot import _state
from plimsoll_operator.spec.identity import ObjectKey

MODEL = ObjectKey(NAMESPACE, "m")


def told(process: Process) -> str:
    return explain(run(_state(process.stores, POOL)), MODEL)


def test_a_model_that_was_used_is_said_to_have_been_and_takes_the_same_after_a_restart_of_its_host() -> None:
    world = World()
    world.ask_for_pool(1)
    world.ask_for("m")
    process = Process(world)
    run(process.settle())
    assert "takes 100 MiB awake" in told(process)
    assert ", never used" in told(process)
    (host,) = world.hosts.values()
    host.use(MODEL)
    run(process.settle())
    before = told(process)
    assert "never used" not in before
    assert ", last used " in before
    assert " ago)" in before.partition("Copies:")[2].partition("Actions:")[0], "how old the report is"
    assert "takes 100 MiB awake (0 B of it the minimum KV cache), 100 MiB asleep" in before
    host.restart("another")
    run(process.settle())
    after = told(process)
    assert "OnDisk" in after
    assert "takes 100 MiB awake (0 B of it the minimum KV cache), 100 MiB asleep" in after
