"""docs/reference/metrics.md and exit-codes.md agree with the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from reference.pages import PAGES, renewed

REPO = Path(__file__).parents[3]
FOLDER = REPO / "docs" / "reference"


@pytest.mark.parametrize("name", PAGES)
def test_a_generated_page_is_up_to_date(name: str) -> None:
    page = (FOLDER / name).read_text(encoding="utf-8")
    assert page == renewed(name, page), f"docs/reference/{name} is old: run `make reference`"


def test_a_page_without_a_mark_is_refused() -> None:
    with pytest.raises(ValueError, match="no mark"):
        renewed("metrics.md", "# Metrics\n")


def test_exit_codes_have_a_meaning() -> None:
    table = (FOLDER / "exit-codes.md").read_text(encoding="utf-8").rpartition("|---|")[2]
    assert all(len(row.split("|")) == 7 and row.split("|")[3].strip() for row in table.strip().splitlines()[1:])
