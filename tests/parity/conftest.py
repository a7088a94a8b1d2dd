"""Runs this folder on a GPU if there is one: our kernels attend there, and tests for CPUs are skipped.

On a CPU none of this has an effect.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator

import pytest
from gpu_support.device import DEVICE, exact, only_on_a_cpu, prepare, refused

from plimsoll_runtime.errors import UsageError


@pytest.fixture(scope="module", autouse=True)
def _on_the_device(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if DEVICE.type != "cpu":
            exact()
            prepare(patch, request.path.name)
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    """Skip tests that are not about a device, and fixtures that the device rejects."""
    if reason := only_on_a_cpu(item.path.name):
        pytest.skip(reason)
    return (yield from _skipping())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Skip a test whose backend the device lacks."""
    return (yield from _skipping())


def _skipping() -> Generator[None]:
    try:
        return (yield)
    except UsageError as error:
        if refused(error):
            pytest.skip(str(error))
        raise
