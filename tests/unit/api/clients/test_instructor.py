"""`instructor` requests pydantic models: one, nested, rejected and requested again, in parts, and many in an output."""

from __future__ import annotations

import asyncio
import json

import pytest

from plimsoll_runtime.text.tokenizer import Tokenizer

from .conftest import HERE, WAYS, Ways, client_python, run_client, standing_in

pytestmark = pytest.mark.long

PROGRAM = HERE / "instructor_client.py"
FORMS, CALLS = ("JSON_SCHEMA",), ("TOOLS", "TOOLS_STRICT", "RESPONSES_TOOLS")
SHIPS = [{"name": "Argo", "masts": 1, "flags": ["red"]}, {"name": "Fram", "masts": 3, "flags": ["red", "blue"]}]


@pytest.mark.long
async def test_many_in_an_answer(tokenizer: Tokenizer) -> None:
    """Lists, complete and streamed: their class is instructor's own and allows additional fields."""
    python = client_python("instructor")
    content = json.dumps({"tasks": SHIPS})
    call = f'<tool_call>\n{{"name": "IterableShip", "arguments": {content}}}\n</tool_call>'
    async with standing_in(tokenizer) as stand_in:
        for modes, answer in ((FORMS, content), (CALLS, call)):
            stand_in.answers(answer)
            urls = [stand_in.ways.url(way) for way in WAYS]
            told = await asyncio.to_thread(run_client, python, PROGRAM, "many", "fake", ",".join(modes), *urls)
            assert told == {url: {mode: {"whole": SHIPS, "streamed": SHIPS} for mode in modes} for url in urls}


@pytest.mark.long
def test_an_answer_is_what_was_asked_for(tiny: Ways) -> None:
    """A model of random weights writes what the schema allows; if validation fails, the client asks again."""
    python, modes = client_python("instructor"), (*FORMS, *CALLS)
    told = run_client(python, PROGRAM, "one", "tiny", ",".join(modes), tiny.server, tiny.gateway)
    assert list(told) == [tiny.server, tiny.gateway]
    assert all(list(by_mode) == list(modes) for by_mode in told.values())
    for answers in (each for by_mode in told.values() for each in by_mode.values()):
        assert answers["awaited"] == answers["ship"]
        assert set(answers["ship"]) == {"name", "masts", "flags"}
        grown = [sum(value is not None for value in part.values()) for part in answers["partial"]]
        assert grown == sorted(grown)
        assert grown[-1] == 3
        assert set(answers["berth"]) == {"ship", "depth"}
        assert answers["berth"]["depth"] in (3, 5, 8, None)
        assert answers["believed"]["name"] in ("Argo", "Beagle", "Fram")
        assert (answers["model"], answers["doubted"]) == ("tiny", 2)
