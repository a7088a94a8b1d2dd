"""Every API key is a tenant, with a stable name that reveals nothing of the key."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from plimsoll_runtime.api.server.credentials import Tenants, salted

KEYS = ("one", "other", "ключ")
HELLO: list[Any] = [{"role": "user", "content": "Hi"}]


def test_each_key_has_a_name_of_its_own_that_does_not_hold_it() -> None:
    names = [Tenants().of(key) for key in KEYS]
    assert len(set(names)) == len(KEYS)
    assert all(len(name) == 64 and key not in name for name, key in zip(names, KEYS, strict=True))


def test_a_name_is_the_same_after_a_restart() -> None:
    """Cached prefixes on disk stay usable."""
    code = "from plimsoll_runtime.api.server.credentials import Tenants; print(Tenants().of('one'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == Tenants().of("one")


def test_without_keys_all_are_one_tenant_and_shared_they_cache_as_one() -> None:
    assert Tenants().of(None) == ""
    assert {Tenants(shared=True).cached_as(key) for key in KEYS} == {""}
    assert [Tenants().cached_as(key) for key in KEYS] == list(KEYS)


def test_a_salt_of_the_clients_own_leads_into_no_other_tenant() -> None:
    one, other = (Tenants().of(key) for key in KEYS[:2])
    own = [None, "", "a", "a/b", f"{other}/", other]
    salts = [salted(tenant, salt) for tenant in (one, other) for salt in own[1:]]
    assert len(set(salts)) == len(salts)
    assert salted(one, None) == salted(one, "")
    assert [salted("", salt) for salt in (None, "", "a")] == ["", "", "a"]


@pytest.mark.matrix(2)
@pytest.mark.parametrize("endpoint", ["chat", "completions"])
@pytest.mark.parametrize("shares", [False, True])
async def test_the_key_of_a_request_salts_it(run_server: Any, endpoint: str, shares: bool) -> None:
    async with run_server(api_keys=KEYS[:2], share_prefix_cache=shares) as running:
        for key, salt in (("one", None), ("other", None), ("one", None), ("one", "mine")):
            extra = {} if salt is None else {"cache_salt": salt}
            client = running.openai(key)
            if endpoint == "chat":
                await client.chat.completions.create(model="fake", messages=HELLO, extra_body=extra)
            else:
                await client.completions.create(model="fake", prompt="Hi", extra_body=extra)
        salts = [request.context.cache_salt for request in running.engine.asked]
    names = ["", ""] if shares else [f"{Tenants().of(key)}/" for key in KEYS[:2]]
    assert salts == [names[0], names[1], names[0], f"{names[0]}mine"]


async def test_a_wrong_key_costs_no_hash(run_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async with run_server(api_keys=KEYS[:2]) as running, running.http() as http:
        seen: list[str | None] = []
        monkeypatch.setattr(running.server.state.tenants, "of", seen.append)
        for key in ("wrong", "one"):
            await http.get("/v1/models", headers={"Authorization": f"Bearer {key}"})
    assert seen == ["one"]
