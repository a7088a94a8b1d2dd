"""Body limits: runtime and gateway know the same paths, the gateway's limits do not exceed the runtime's, and
docs/reference/api.md lists both.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from plimsoll_gateway.admission.limits import BODY_BYTES as OF_GATEWAY
from plimsoll_runtime.api.batches.endpoint import BatchService, batch_routes
from plimsoll_runtime.api.server.app import MODEL_ROUTES
from plimsoll_runtime.api.server.limits import BODY_BYTES as OF_RUNTIME

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "api.md"
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20}


def told() -> Iterator[tuple[str, int, int]]:
    """Yield each path of the page with the limits of runtime and gateway."""
    row = r"^\| (`/[^|]*) \| ([0-9]+) ([KM]iB) \| ([0-9]+) ([KM]iB) \|$"
    for paths, most, unit, gateways, its_unit in re.findall(row, PAGE.read_text(), re.MULTILINE):
        for path in re.findall(r"`([^`]+)`", paths):
            yield path, int(most) * UNITS[unit], int(gateways) * UNITS[its_unit]


def test_the_page_tells_what_is() -> None:
    assert {path: most for path, most, _ in told()} == dict(OF_RUNTIME)
    assert {path: most for path, _, most in told()} == dict(OF_GATEWAY)


@pytest.mark.parametrize("path", sorted(OF_GATEWAY))
def test_what_the_gateway_lets_through_the_runtime_takes(path: str) -> None:
    assert OF_GATEWAY[path] <= OF_RUNTIME[path]


def test_every_path_that_takes_a_body_has_a_limit() -> None:
    routes = (*MODEL_ROUTES, *batch_routes(BatchService()))
    taking = {path for method, path, _ in routes if method == "POST" and "{" not in path}
    assert OF_RUNTIME.keys() == taking | {"/v1/responses", "/v1/responses/input_tokens"}
