"""The headers between gateway and runtime: tenant, credential, and the runtime's load."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import Headers

from plimsoll_gateway.keys import credential
from plimsoll_gateway.keys.api_key import NAME
from plimsoll_gateway.proxy import headers
from plimsoll_gateway.routing import response_affinity
from plimsoll_gateway.routing.loads import Report, read_report
from plimsoll_runtime.api import served_model as load
from plimsoll_runtime.api.responses import errors
from plimsoll_runtime.api.server import credentials
from plimsoll_runtime.api.server.credentials import Gateways

TOKEN = "a-credential-for-both-sides"


def fields_of(voucher: headers.Voucher) -> dict[str, str]:
    """Return the headers that the gateway sends with a voucher."""
    return {name.decode(): value.decode() for name, value in headers.request_headers([], "id", voucher)}


def test_both_have_the_same_names() -> None:
    assert headers.TENANT.decode() == credentials.TENANT_HEADER == credentials.BELIEVED_HEADER
    assert headers.CREDENTIAL.decode() == credentials.CREDENTIAL_HEADER
    assert headers.LOAD.decode() == load.LOAD_HEADER
    assert headers.PLACE.decode() == errors.PLACE_HEADER
    assert response_affinity.NOWHERE == errors.NOWHERE
    of_another_runtime = memoryview(b'"%s"' % errors.response_id({}).encode())
    assert response_affinity.place_in({"previous_response_id": of_another_runtime}) == ""


@given(tenant=st.from_regex(NAME, fullmatch=True))
def test_every_tenant_that_the_gateway_may_have_is_one_for_the_runtime(tenant: str) -> None:
    sent = fields_of(headers.Voucher(tenant, TOKEN))
    assert Gateways([TOKEN]).tenant(Headers(sent)) == f"gateway:{tenant}"


@given(text=st.binary(max_size=300))
def test_what_is_a_credential_for_one_is_one_for_the_other(
    text: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("token") / "token"
    file.write_bytes(text)
    try:
        taken = credential.read_credentials(file)[0].encode()
    except credential.CredentialError:
        taken = None
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    try:
        known: tuple[bytes, ...] = credentials.tokens_of(file)
    except credentials.GatewayTokensError:
        known = ()
    assert not known or taken == known[0]
    assert taken is None or len(lines) > 1 or known == (taken,)


def test_a_key_that_nobody_vouches_for_is_sent_without_tenant() -> None:
    sent = fields_of(headers.Voucher("a", None))
    assert Gateways([TOKEN]).tenant(Headers(sent)) is None


async def test_the_gateway_reads_what_the_runtime_tells_of_its_load() -> None:
    from types import SimpleNamespace

    def told(running: int, waiting: int, used: int, total: int, slots: int) -> bytes:
        stats = SimpleNamespace(running=running, waiting=waiting, blocks_used=used, blocks_total=total)
        engine = SimpleNamespace(stats=stats, info=SimpleNamespace(max_sequences=slots))
        return load.load_of(SimpleNamespace(engine=engine)).encode()  # type: ignore[arg-type]

    assert read_report(told(3, 2, 25, 100, 128), own=1) == Report(4, 128, 0.25, 3, 2)
    assert read_report(told(0, 0, 0, 0, 0), own=0) == Report(0, None, 0.0, 0, 0)
    assert read_report(told(500, 4096, 100, 100, 512), own=0) == Report(4596, 512, 1.0, 500, 4096)
