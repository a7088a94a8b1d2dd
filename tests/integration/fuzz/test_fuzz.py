"""The short form of `make fuzz`: some hundred requests to real servers, none of which may fail, hang or leak."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzz.run import fuzz, summary

COUNT = 300


@pytest.mark.long
@pytest.mark.timeout(900)
def test_nothing_breaks_hangs_or_is_kept(tmp_path: Path) -> None:
    window = fuzz(tmp_path, count=COUNT, seed=3, patience=120, users=4, minutes=8)
    assert window.wrong == 0, summary(window)
    assert window.sent == COUNT
    answered = sum(counts["200"] for counts in window.kinds.values())
    assert answered > COUNT / 10, "some requests must be valid"
