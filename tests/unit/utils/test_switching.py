"""Computing threads get Python's lock quickly within the context."""

from __future__ import annotations

import sys

import pytest

from plimsoll_runtime.utils.threads import SECONDS, quick_switches


def test_for_a_while_even_if_that_fails() -> None:
    before = sys.getswitchinterval()
    assert before > SECONDS
    seen = []

    def look() -> None:
        seen.append(sys.getswitchinterval())
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), quick_switches():
        look()
    assert seen == [pytest.approx(SECONDS)]
    assert sys.getswitchinterval() == before
