"""Renders the chart with the real Helm; without one, the tests that need it are skipped."""

from collections.abc import Callable

import pytest
from chart_support import helm as chart
from chart_support.helm import Object

Render = Callable[..., list[Object]]


@pytest.fixture(scope="session")
def helm() -> Callable[..., str]:
    """Runs Helm with these arguments and returns what it prints; raises RefusedError."""
    try:
        chart.find_helm()
    except chart.NoHelmError as missing:
        pytest.skip(str(missing))
    return chart.helm


@pytest.fixture(scope="session")
def render(helm: Callable[..., str]) -> Render:
    """The objects that the chart makes of these values, in release `pl` in namespace `serving`."""
    return chart.render


@pytest.fixture(scope="session")
def refused() -> type[Exception]:
    """What `helm` and `render` raise."""
    return chart.RefusedError
