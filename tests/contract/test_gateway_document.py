"""The gateway's OpenAPI document is the runtime's, limited to the gateway's paths."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from plimsoll_gateway.admission.limits import MODEL_PATHS
from plimsoll_gateway.errors.dialects import MODELS
from plimsoll_gateway.pages import PAGES, POLICY, page_at
from plimsoll_gateway.pages.model_list import MODEL_PREFIX
from plimsoll_gateway.pages.own_paths import OPEN
from plimsoll_gateway.proxy.files import filed_at
from plimsoll_gateway.routing.response_affinity import kept_at
from plimsoll_runtime.api.openapi.gateway_pages import files, gateway_document
from plimsoll_runtime.api.openapi.html import POLICY as PAGES_POLICY

FOLDER = Path(__file__).parents[2] / "operator" / "plimsoll_gateway" / "pages"


@pytest.mark.parametrize("name", files())
def test_the_files_are_up_to_date(name: str) -> None:
    assert (FOLDER / name).read_text(encoding="utf-8") == files()[name], "outdated: run make reference"


def test_a_gateway_shows_them() -> None:
    assert json.loads(page_at("/openapi.json")[1]) == json.loads(json.dumps(gateway_document()))
    assert page_at("/docs")[1].startswith(b"<!doctype html>")
    assert PAGES.keys() <= OPEN
    assert dict(POLICY) == {b"content-security-policy": PAGES_POLICY.encode()}


def methods_of(path: str) -> set[str]:
    """Return the methods that a gateway accepts at a path."""
    if path in MODEL_PATHS:
        return {"POST"}
    if (kept := kept_at(path)) is not None:
        return set(kept.methods)
    if (filed := filed_at(path)) is not None:
        return set(filed)
    return {"GET"} if path in OPEN or path == MODELS or path.startswith(MODEL_PREFIX) else set()


def test_its_paths_are_those_that_a_gateway_has() -> None:
    paths = gateway_document()["paths"]
    assert {path: methods_of(path) for path in paths} == {
        path: {method.upper() for method in methods} for path, methods in paths.items()
    }
    assert MODEL_PATHS | (OPEN - {"/metrics"}) <= set(paths)
