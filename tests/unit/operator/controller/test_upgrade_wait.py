"""A model or a pool in the upgrade queue waits without being reconciled endlessly."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from operator_support import pooled
from operator_support.objects import Json
from operator_support.pooled import POOL
from operator_support.rolling import Process, World

from plimsoll_operator.build.image import Image
from plimsoll_operator.spec.identity import POOL_KIND

LATE = 10_000
"""Beyond every deadline."""


def reason_of(item: Json) -> Any:
    return next(c["reason"] for c in item["status"]["conditions"] if c["type"] == "Progressing")


@pytest.mark.parametrize("seconds", [10, LATE])
def test_a_model_in_the_queue_has_no_pass_at_once(seconds: float) -> None:
    world = World()
    world.ask_for(100, 2, None)
    settled(world, Process(world))
    after = Process(world, image="runtime:2", upgrades=0)
    settled(world, after)
    world.now += seconds
    result = after.result()
    assert reason_of(world.model) == "RolloutQueued"
    assert result.again is None or result.again > timedelta(0)
    assert (result.again is None) == (seconds == LATE)


def settled(world: World, process: Process) -> None:
    for _ in range(6):
        process.one_pass()
        world.proceed()


@pytest.mark.parametrize("seconds", [10, LATE])
def test_nor_has_a_pool(seconds: float) -> None:
    world = pooled.World()
    world.ask_for_pool(1)
    pooled.run(pooled.Process(world).settle())
    after = pooled.Process(world, image=Image("runtime:2"), upgrades=0)
    pooled.run(after.settle())
    world.now += seconds
    result = pooled.run(after.one_pass(POOL.of(POOL_KIND)))
    assert reason_of(world.server.objects[POOL_KIND][POOL.name]) == "RolloutQueued"
    assert result.again is None or result.again > timedelta(0)
