"""Parametrises tests with each build of the CPU kernels."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kernel_support.instructions import BFLOAT16, BUILDS, FLOAT32, Build, forced


@pytest.fixture(params=BUILDS, ids=str)
def build(request: pytest.FixtureRequest) -> Iterator[Build]:
    with forced(request.param) as build:
        yield build


@pytest.fixture(params=FLOAT32, ids=str)
def float32_build(request: pytest.FixtureRequest) -> Iterator[Build]:
    with forced(request.param) as build:
        yield build


@pytest.fixture(params=BFLOAT16, ids=str)
def bfloat16_build(request: pytest.FixtureRequest) -> Iterator[Build]:
    with forced(request.param) as build:
        yield build
