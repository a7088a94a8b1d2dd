"""Options of the whole suite."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# How long an example takes, and which are drawn, says something about the machine and about luck: neither fails a test.
settings.register_profile(
    "same",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
# Draws other examples in each run: `make test PYTEST_ARGS=--hypothesis-profile=search` looks for what is rare.
settings.register_profile("search", settings.get_profile("same"), derandomize=False)
settings.load_profile("same")
