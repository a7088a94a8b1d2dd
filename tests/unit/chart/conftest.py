"""Render the chart with the real Helm; tests that need it are skipped without one."""

from collections.abc import Callable

import pytest
from chart_support import helm as chart
from chart_support.helm import Object

Render = Callable[..., list[Object]]


@pytest.fixture(scope="session")
def helm() -> Callable[..., str]:
    """Return a function that runs Helm and returns its output, or raises RefusedError."""
    try:
        chart.find_helm()
    except chart.NoHelmError as missing:
        pytest.skip(str(missing))
    return chart.helm


@pytest.fixture(scope="session")
def render(helm: Callable[..., str]) -> Render:
    """Return a function that renders the chart with values, as release `pl` in namespace `serving`."""
    return chart.render


@pytest.fixture(scope="session")
def refused() -> type[Exception]:
    """The error that `helm` and `render` raise."""
    return chart.RefusedError
