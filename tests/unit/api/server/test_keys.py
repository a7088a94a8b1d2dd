"""API keys: hashed, compared, and read again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from plimsoll_runtime.api.http.errors import ApiError
from plimsoll_runtime.api.server.credentials import LOOK_SECONDS, ApiKeys

BODY = {"model": "fake", "prompt": "Hi", "max_tokens": 1}


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def lets_in(keys: ApiKeys, given: str | None) -> bool:
    try:
        return keys.check({} if given is None else {"authorization": f"Bearer {given}"}) == given
    except ApiError:
        return False


def test_without_keys_everybody_is_let_in() -> None:
    assert ApiKeys().check({}) is None
    assert ApiKeys().check({"authorization": "Bearer anything"}) is None


def test_keys_of_a_file_join_the_others_and_are_replaced(tmp_path: Path) -> None:
    path, clock = tmp_path / "keys", Clock()
    path.write_text("first\n\n  second \n")
    keys = ApiKeys(["own"], path, clock)
    assert [lets_in(keys, key) for key in ("own", "first", "second", "third", "", None)] == [True] * 3 + [False] * 3
    path.write_text("third\nsecond\n")
    clock.now += LOOK_SECONDS
    assert [lets_in(keys, key) for key in ("own", "first", "second", "third")] == [True, False, True, True]


@pytest.mark.parametrize("damage", ["", "two words\n", None])
def test_a_file_that_is_damaged_later_changes_nothing(tmp_path: Path, damage: str | None) -> None:
    path, clock = tmp_path / "keys", Clock()
    path.write_text("first\n")
    keys = ApiKeys((), path, clock)
    if damage is None:
        path.unlink()
    else:
        path.write_text(damage)
    clock.now += LOOK_SECONDS
    assert [lets_in(keys, key) for key in ("first", "two words", "")] == [True, False, False]


def test_no_key_is_kept_as_it_is() -> None:
    keys = ApiKeys(["secret-key"])
    assert b"secret-key" not in repr([getattr(keys, name) for name in vars(keys)]).encode()


async def test_a_server_takes_the_keys_of_its_file(run_server: Any, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("first\n")
    async with run_server(api_key_file=path) as server, server.http() as http:
        answers = [
            await http.post("/v1/completions", json=BODY, headers={"Authorization": f"Bearer {key}"})
            for key in ("first", "other")
        ]
        assert [answer.status_code for answer in answers] == [200, 401]
