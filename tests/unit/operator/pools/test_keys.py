"""Tokens: one a pool and a side, pods know hashes alone, and nothing of a key is ever shown."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from plimsoll_operator.build.host import build_host
from plimsoll_operator.build.image import Image
from plimsoll_operator.identity import POOL_KIND, ObjectKey, Owner
from plimsoll_operator.pools.keys import GATEWAY, OPERATOR, HostKeys, KeysError, host_token, read_keys
from plimsoll_operator.pools.spec import PoolSpec, read_pool

KEYS = HostKeys(b"operator's " * 4, b"gateway's " * 4)
SHARED = ObjectKey("team", "shared")


def pool() -> PoolSpec:
    item = {"metadata": {"namespace": "team", "name": "shared", "uid": "u", "generation": 1}}
    return read_pool(item | {"spec": {"resources": {"memory": "4Gi"}, "memory": {"sleepers": "1Gi"}}})


def test_each_pool_and_each_side_has_a_token_of_its_own() -> None:
    other = ObjectKey("team", "other")
    tokens = {host_token(key, p) for key in (KEYS.operator, KEYS.gateway) for p in (SHARED, other)}
    assert len(tokens) == 4
    assert KEYS.token(SHARED) == host_token(KEYS.operator, SHARED)
    assert all(len(token) == 64 for token in tokens)


def test_a_pod_knows_the_hashes_and_neither_token_nor_key() -> None:
    text = json.dumps(build_host(pool(), Image("runtime:1"), KEYS, "x1"))
    wake = host_token(KEYS.gateway, SHARED)
    for token in (KEYS.token(SHARED), wake):
        assert hashlib.sha256(token.encode()).hexdigest() in text
        assert token not in text
    assert "operator's" not in text


def test_other_keys_make_other_pods_but_no_other_user_part() -> None:
    spec, other = pool(), HostKeys(b"x" * 32, b"y" * 32)
    labels = [
        build_host(spec, Image("runtime:1"), keys, "x1")["metadata"]["labels"]["plimsoll.dev/pod-hash"]
        for keys in (KEYS, other)
    ]
    assert labels[0] != labels[1]
    assert labels[0].partition("-")[0] == labels[1].partition("-")[0], "an upgrade's turn, not the user's edit"


def test_nothing_of_a_key_is_shown() -> None:
    assert "operator's" not in repr(KEYS)
    assert repr(KEYS) == "HostKeys()"


def test_keys_are_read_without_their_line_ends(tmp_path: Path) -> None:
    (tmp_path / OPERATOR).write_bytes(b"o" * 32 + b"\n")
    (tmp_path / GATEWAY).write_bytes(b"g" * 40)
    assert read_keys(tmp_path) == HostKeys(b"o" * 32, b"g" * 40)


@pytest.mark.parametrize(
    ("operator", "gateway", "words"),
    [
        (None, b"g" * 32, "operator cannot be read"),
        (b"o" * 32, None, "gateway cannot be read"),
        (b"secret-but-short", b"g" * 32, "has 16 bytes; it needs 32"),
        (b"", b"g" * 32, "has 0 bytes"),
        (b"s" * 32, b"s" * 32, "are equal"),
    ],
)
def test_keys_that_cannot_be_used(tmp_path: Path, operator: bytes | None, gateway: bytes | None, words: str) -> None:
    for name, content in ((OPERATOR, operator), (GATEWAY, gateway)):
        if content is not None:
            (tmp_path / name).write_bytes(content)
    with pytest.raises(KeysError, match=words) as caught:
        read_keys(tmp_path)
    assert "secret-but-short" not in str(caught.value)


def test_the_owner_of_a_pools_pod_is_the_pool() -> None:
    (reference,) = build_host(pool(), Image("runtime:1"), KEYS, "x1")["metadata"]["ownerReferences"]
    assert reference == Owner(SHARED, "u", POOL_KIND).reference(awaited=True)
