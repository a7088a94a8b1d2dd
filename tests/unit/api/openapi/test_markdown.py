"""docs/reference/api.md matches the schemas, for every path and every parameter."""

from __future__ import annotations

import re
from pathlib import Path

from plimsoll_runtime.api.openapi.document import OPERATIONS
from plimsoll_runtime.api.openapi.markdown import reference, renewed
from plimsoll_runtime.api.schemas.chat import ChatRequest

PAGE = Path(__file__).parents[4] / "docs" / "reference" / "api.md"


def test_the_page_is_as_new() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == renewed(text), "docs/reference/api.md is old: run `make reference`"


def test_nothing_is_left_out() -> None:
    text = reference()
    for operation in OPERATIONS:
        assert f"`{operation.method.upper()} {operation.path}`" in text
        for name, field in operation.request.model_fields.items() if operation.request else ():
            assert f"| `{field.alias or name}` |" in text


def test_every_link_leads_somewhere() -> None:
    text = reference()
    headings = {line.removeprefix("### ").lower() for line in text.splitlines() if line.startswith("### ")}
    assert set(re.findall(r"\]\(#([^)]+)\)", text)) <= headings


def test_states() -> None:
    states = dict(re.findall(r"^\| `(\w+)` \| (\w+) \|", reference().split("### POST ")[1], re.MULTILINE))
    assert states.keys() == set(ChatRequest.model_fields)
    assert (states["model"], states["n"], states["user"], states["audio"]) == (
        "required",
        "supported",
        "ignored",
        "refused",
    )
