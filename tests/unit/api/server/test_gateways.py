"""A gateway with the credential names a request's tenant; other clients cannot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from plimsoll_runtime.api.http.errors import ApiError
from plimsoll_runtime.api.server.credentials import LOOK_SECONDS, Gateways, GatewayTokensError, Tenants, salted
from plimsoll_runtime.cli.main import build_parser
from plimsoll_runtime.cli.serve import server_config
from plimsoll_runtime.errors import UsageError

TOKEN = "the-credential-of-the-gateway"
ASKED = {"model": "fake", "messages": [{"role": "user", "content": "Hi"}]}


def sent(tenant: str | None = "team-a", token: str = TOKEN) -> dict[str, str]:
    return {"x-plimsoll-gateway": token} | ({} if tenant is None else {"x-plimsoll-tenant": tenant})


async def salt_of(running: Any, headers: dict[str, str], **extra: object) -> str:
    async with running.http() as http:
        response = await http.post("/v1/chat/completions", json=ASKED | extra, headers=headers)
    assert response.status_code == 200, response.text
    salt: str = running.engine.asked[-1].context.cache_salt
    return salt


async def test_the_gateways_word_salts_a_request(run_server: Any) -> None:
    async with run_server(gateway_tokens=(TOKEN,)) as running:
        salts = [await salt_of(running, sent(name)) for name in ("team-a", "team-b", "team-a")]
        assert salts[0] == salts[2] != salts[1]
        assert await salt_of(running, sent("team-a"), cache_salt="mine") == salts[0] + "mine"


async def test_others_are_one_tenant_that_no_gateway_can_name(run_server: Any) -> None:
    """The tenant header has no effect without the credential, and a salt stays within its tenant."""
    async with run_server(gateway_tokens=(TOKEN,)) as running:
        believed = await salt_of(running, sent("direct"))
        plain = await salt_of(running, {})
        assert plain == await salt_of(running, {"x-plimsoll-tenant": "team-a"}) != believed
        assert await salt_of(running, {}, cache_salt=believed) not in (believed, plain)


async def test_an_api_key_still_has_its_own_tenant_and_the_gateway_needs_none(run_server: Any) -> None:
    async with run_server(gateway_tokens=(TOKEN,), api_keys=("one",)) as running, running.http() as http:
        own = await salt_of(running, {"authorization": "Bearer one"})
        assert own == salted(Tenants().of("one"), None)
        assert await salt_of(running, sent()) == "gateway:team-a/"
        refused = await http.post("/v1/chat/completions", json=ASKED, headers={"x-plimsoll-tenant": "team-a"})
        assert refused.status_code == 401


@pytest.mark.matrix(2)
@pytest.mark.parametrize(
    "headers",
    [
        sent(token="another-credential"),
        sent(token=""),
        sent(None),
        sent(""),
        sent("a/b"),
        sent("x" * 65),
        {"x-plimsoll-gateway": "ümlaut".encode().decode("latin-1"), "x-plimsoll-tenant": "a"},
    ],
)
async def test_a_wrong_credential_or_tenant_is_served_as_nobody(run_server: Any, headers: dict[str, str]) -> None:
    async with run_server(gateway_tokens=(TOKEN,)) as running, running.http() as http:
        raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        response = await http.post("/v1/chat/completions", json=ASKED, headers=raw)
        assert response.status_code == 503
        assert TOKEN not in response.text
        assert running.engine.asked == []


async def test_without_credentials_all_is_as_before(run_server: Any) -> None:
    async with run_server() as running:
        assert await salt_of(running, sent()) == ""


async def test_where_the_cache_is_shared_gateways_cannot_part_it(run_server: Any) -> None:
    async with run_server(gateway_tokens=(TOKEN,), share_prefix_cache=True) as running:
        assert [await salt_of(running, headers) for headers in (sent("a"), sent("b"), {})] == ["", "", ""]


async def test_an_answer_tells_the_load_and_whether_the_gateway_was_believed(run_server: Any) -> None:
    async with run_server(gateway_tokens=(TOKEN,)) as running, running.http() as http:
        believed = await http.post("/v1/chat/completions", json=ASKED, headers=sent())
        direct = await http.post("/v1/chat/completions", json=ASKED)
    assert believed.headers["x-plimsoll-load"] == "running=1, waiting=0, slots=64, kv=0.25"
    assert believed.headers["x-plimsoll-tenant"] == "believed"
    assert "x-plimsoll-tenant" not in direct.headers


def test_a_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    now, file = 0.0, tmp_path / "token"
    file.write_text("first-credential-0\n")
    gateways = Gateways(file=file, clock=lambda: now)

    def knows(token: str) -> bool:
        nonlocal now
        now += LOOK_SECONDS
        try:
            return gateways.tenant(sent("a", token)) == "gateway:a"
        except ApiError:
            return False

    assert knows("first-credential-0")
    file.write_text("first-credential-0\n\nsecond-credential-0\n")
    assert knows("second-credential-0")
    assert knows("first-credential-0")
    replace(file, "second-credential-0")
    assert not knows("first-credential-0")
    file.unlink()
    assert knows("second-credential-0"), "what was read last stays"
    replace(file, "short")
    assert knows("second-credential-0")
    replace(file, "third-credential-00")
    assert knows("third-credential-00")


def replace(file: Path, text: str) -> None:
    """Replace a file as the kubelet does, by renaming another one."""
    new = file.with_name("new")
    new.write_text(text)
    new.replace(file)


@pytest.mark.parametrize(
    ("content", "what"),
    [("", "has no credential"), (" \n", "has no credential"), ("0123456789abcdef\nshort\n", "credential 2"),
     ("two words of sixteen", "credential 1")],
)  # fmt: skip
def test_a_file_without_credentials_is_refused_and_not_quoted(tmp_path: Path, content: str, what: str) -> None:
    file = tmp_path / "token"
    file.write_text(content)
    with pytest.raises(GatewayTokensError, match=what) as error:
        Gateways(file=file)
    assert all(word not in str(error.value) for word in content.split() if word not in ("of", "words"))
    with pytest.raises(GatewayTokensError, match="cannot be read"):
        Gateways(file=tmp_path / "missing")


def test_the_environment_and_the_option_reach_the_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PLIMSOLL_GATEWAY_TOKEN", f" {TOKEN}\n")
    file = tmp_path / "token"
    config = server_config(build_parser().parse_args(["serve", "m", "--gateway-token-file", str(file)]))
    assert (config.gateway_tokens, config.gateway_token_file) == ((TOKEN,), file)
    monkeypatch.setenv("PLIMSOLL_GATEWAY_TOKEN", "short")
    with pytest.raises(UsageError, match="16 to 256") as error:
        server_config(build_parser().parse_args(["serve", "m"]))
    assert "short" not in str(error.value)
