"""Options of the whole test suite. Triton's kernels run on a GPU, or interpreted on the CPU."""

from __future__ import annotations

import gc
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, settings
from kernel_support.interpreter import quicken_interpreter
from port_support.held import held_port

GPU_DEVICES = (Path("/dev/nvidiactl"), Path("/dev/kfd"))
HAS_GPU = any(device.exists() for device in GPU_DEVICES)

if not HAS_GPU:
    # Triton reads this at import, and it then applies to every kernel of the process.
    os.environ.setdefault("TRITON_INTERPRET", "1")

# The duration and choice of examples depend on the machine and on chance, so they must not fail a test.
settings.register_profile(
    "same",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
# Draws new examples in each run, to search for rare failures: `make test PYTEST_ARGS=--hypothesis-profile=search`.
settings.register_profile("search", settings.get_profile("same"), derandomize=False)
settings.load_profile("same")


@pytest.fixture
def unused_tcp_port_factory() -> Iterator[Callable[[], int]]:
    """Replace pytest-asyncio's factory, whose ports another process can take before the test listens."""
    with ExitStack() as held:
        yield lambda: held.enter_context(held_port())


@pytest.fixture
def unused_tcp_port(unused_tcp_port_factory: Callable[[], int]) -> int:
    return unused_tcp_port_factory()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep what is imported and collected out of garbage collections, which would take a seventh of the CPU time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.set_threshold(700, 10, 50)  # the default 10: too often, because few objects are not frozen
        gc.enable()
        if os.environ.get("TRITON_INTERPRET") == "1" and "triton.runtime.interpreter" in sys.modules:
            quicken_interpreter()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the parameter sets of a matrix that are not in its sample as `long`.

    Without a GPU, sets that need one are not in it. The sample depends on the test's name and the number of sets.
    """
    matrices: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("matrix") is not None:
            matrices[item.nodeid.partition("[")[0]].append(item)
    for name, found in matrices.items():
        marker = found[0].get_closest_marker("matrix")
        assert marker is not None
        (keep,) = marker.args
        able = [item for item in found if HAS_GPU or item.get_closest_marker("gpu") is None]
        sample = Random(name).sample(able, min(keep, len(able)))
        for item in set(found).difference(sample):
            item.add_marker(pytest.mark.long)
