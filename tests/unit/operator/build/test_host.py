"""The key of hosts: one token for each pool, pods get only its hash, and the key is never shown."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from plimsoll_operator.build.host import FILE, HostKey, HostKeyError, build_host, read_key
from plimsoll_operator.build.image import Image
from plimsoll_operator.spec.identity import POOL_KIND, ObjectKey, Owner
from plimsoll_operator.spec.runtime_pool import PoolSpec, read_pool

KEY = HostKey(b"operator's " * 4)
SHARED = ObjectKey("team", "shared")


def pool() -> PoolSpec:
    item = {"metadata": {"namespace": "team", "name": "shared", "uid": "u", "generation": 1}}
    return read_pool(item | {"spec": {"resources": {"memory": "4Gi"}, "memory": {"sleepers": "1Gi"}}})


def test_each_pool_has_a_token_of_its_own() -> None:
    pools = (SHARED, ObjectKey("team", "other"), ObjectKey("guests", "shared"))
    tokens = {key.token(pool) for key in (KEY, HostKey(b"x" * 32)) for pool in pools}
    assert len(tokens) == 6
    assert all(len(token) == 64 for token in tokens)


def test_a_pod_knows_the_hash_and_neither_token_nor_key() -> None:
    text = json.dumps(build_host(pool(), Image("runtime:1"), KEY, "x1"))
    token = KEY.token(SHARED)
    assert hashlib.sha256(token.encode()).hexdigest() in text
    assert token not in text
    assert "operator's" not in text


def test_another_key_makes_another_pod_but_no_other_user_part() -> None:
    labels = [
        build_host(pool(), Image("runtime:1"), key, "x1")["metadata"]["labels"]["plimsoll.dev/pod-hash"]
        for key in (KEY, HostKey(b"x" * 32))
    ]
    assert labels[0] != labels[1]
    assert labels[0].partition("-")[0] == labels[1].partition("-")[0], "an upgrade's turn, not the user's edit"


def test_nothing_of_a_key_is_shown() -> None:
    assert repr(KEY) == "HostKey()"


def test_a_key_is_read_without_its_line_end(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"o" * 32 + b"\n")
    assert read_key(tmp_path) == HostKey(b"o" * 32)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot read the key .*operator"),
        (b"secret-but-short", "has 16 bytes; it needs at least 32"),
        (b"", "has 0 bytes"),
    ],
)
def test_keys_that_cannot_be_used(tmp_path: Path, content: bytes | None, words: str) -> None:
    if content is not None:
        (tmp_path / FILE).write_bytes(content)
    with pytest.raises(HostKeyError, match=words) as caught:
        read_key(tmp_path)
    assert "secret-but-short" not in str(caught.value)


def test_the_owner_of_a_pools_pod_is_the_pool() -> None:
    (reference,) = build_host(pool(), Image("runtime:1"), KEY, "x1")["metadata"]["ownerReferences"]
    assert reference == Owner(SHARED, "u", POOL_KIND).reference(awaited=True)
