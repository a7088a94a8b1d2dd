"""A vocabulary of bytes and markers, and llguidance's version of it."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from tool_support.markers import END, SPECIAL

from plimsoll_runtime.engine.protocol.messages import Vocabulary
from plimsoll_runtime.structured.vocabulary import compiled

if TYPE_CHECKING:
    from llguidance import LLTokenizer


@pytest.fixture(scope="session")
def spelling() -> LLTokenizer:
    pieces = [bytes([byte]) for byte in range(256)] + [marker.encode() for marker in SPECIAL]
    lengths = array("I", map(len, pieces)).tobytes()
    special = list(range(END, len(pieces)))
    return compiled(Vocabulary(b"".join(pieces), lengths, special, [END]))


@pytest.fixture(params=[True, False], ids=["special tokens", "markers as text"])
def special_id(request: pytest.FixtureRequest) -> Callable[[str], int | None]:
    """Run with markers as special tokens, and with markers spelled by bytes."""
    ids = {marker: END + index for index, marker in enumerate(SPECIAL)} if request.param else {}
    return ids.get
