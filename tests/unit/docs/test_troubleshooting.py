"""docs/operations/troubleshooting.md has every reason of conditions and every code of the gateway's errors."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from plimsoll_gateway.errors import refusals
from plimsoll_operator.status.reasons import Reason

PAGE = (Path(__file__).parents[3] / "docs" / "operations" / "troubleshooting.md").read_text(encoding="utf-8")
OF_EVENTS = {
    "ScaledUp",
    "ScaledDown",
    "ScaledFromZero",
    "ScaledToZero",
    "Moved",
    "MovedLately",
    "Woken",
    "Refused",
    "PodCreated",
    "PodDeleted",
    "ServiceApplied",
    "BudgetApplied",
    "BudgetDeleted",
}
"""Reasons that no condition has."""
CODE = re.compile(r'code(?:: str)?="([a-z_]+)"|_unavailable\([^()]*, "([a-z_]+)"', re.DOTALL)


def test_every_reason_of_a_condition_is_explained() -> None:
    assert {reason.value for reason in Reason if f"`{reason}`" not in PAGE} <= OF_EVENTS


def test_every_code_of_the_gateway_is_explained() -> None:
    codes = {one or other for one, other in CODE.findall(inspect.getsource(refusals))}
    assert len(codes) > 20
    assert {code for code in codes if f"`{code}`" not in PAGE} == set()
