"""Ways to damage a request's body: values that no schema expects, bytes that are not JSON."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Sequence
from typing import Any

STRANGE: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1.5,
    -0.0,
    5e-324,
    1e308,
    float("nan"),
    float("inf"),
    float("-inf"),
    2**31,
    2**63,
    -(2**63),
    2**64,
    10**400,
    "",
    " ",
    "\x00",
    "\ud800",
    "\udfff\ud800",
    "\ufeff\ufffe\uffff",
    "😀" * 50,
    "x" * 10_000,
    "e" + "\u0301" * 500,
    "{{ 1/0 }}",
    "{% for i in range(999999999) %}x{% endfor %}",
    "<|assistant|></s>",
    "../../etc/passwd",
    "resp_000000000000" + "0" * 32,
    [],
    [[]],
    [None],
    [[[[[]]]]],
    ["a", 1, None, {}],
    [0] * 2000,
    {},
    {"": ""},
    {"type": None},
    {"type": "object"},
    {"__class__": "x"},
    {"a": {"b": {"c": [1, {"d": None}]}}},
)


def change(rng: random.Random, body: Any, others: Sequence[tuple[str, Any]]) -> None:
    """Modify a body in place at one random point, at any depth: remove or replace a value, add a field, or repeat an
    item of a list. `others`: fields of other endpoints with their values.
    """
    while True:
        keys = list(body) if isinstance(body, dict) else list(range(len(body)))
        if not keys:
            return
        key = rng.choice(keys)
        if isinstance(body[key], dict | list) and body[key] and rng.random() < 0.6:
            body = body[key]
            continue
        turn = rng.randrange(6)
        if turn == 0:
            del body[key]
        elif turn == 1 and isinstance(body, dict):
            body[rng.choice(("unknown", "", "\ud800", "x" * 300, f"{key} "))] = strange(rng)
        elif turn == 2 and isinstance(body, dict) and others:
            name, value = rng.choice(others)
            body[name] = copy.deepcopy(value)
        elif turn == 3 and isinstance(body, list):
            body += [copy.deepcopy(body[key]) for _ in range(rng.choice((1, 10, 600)))]
        else:
            body[key] = strange(rng)
        return


def strange(rng: random.Random) -> Any:
    """Return a value that hardly any field accepts."""
    return copy.deepcopy(rng.choice(STRANGE))


def nested(rng: random.Random, body: dict[str, Any]) -> bytes:
    """Return the body as bytes, with one field deeply nested, very long, or a huge number. They may be invalid JSON."""
    size = rng.choice((50, 500, 20_000))
    makers: tuple[Callable[[], bytes], ...] = (
        lambda: b"[" * size + b"]" * size,
        lambda: b'{"a":' * size + b"1" + b"}" * size,
        lambda: b"[" + b"1," * size + b"1]",
        lambda: b"{" + b",".join(b'"%d":%d' % (i, i) for i in range(size)) + b"}",
        lambda: b'"' + b"\\u0000" * size + b'"',
        lambda: b'"' + b"\\ud83d" * size + b'"',
        lambda: b"-" * size,
        lambda: b"9" * size,
        lambda: b"0." + b"1" * size + b"e999",
    )
    value, chosen = rng.choice(makers)(), rng.choice([*body, "extra"])
    pairs = {key: json.dumps(inner).encode() for key, inner in body.items()} | {chosen: value}
    return b"{" + b",".join(json.dumps(key).encode() + b":" + text for key, text in pairs.items()) + b"}"


def flipped(rng: random.Random, data: bytes) -> bytes:
    """Return the data with one to eight random changes, each of which replaces, removes or adds bytes."""
    changed = bytearray(data or b"x")
    for _ in range(rng.randint(1, 8)):
        place = rng.randrange(len(changed) + 1)
        turn = rng.randrange(3)
        if turn == 0:
            changed[place : place + 1] = bytes([rng.randrange(256)])
        elif turn == 1:
            del changed[place : place + 1]
        else:
            changed[place:place] = rng.randbytes(rng.randint(1, 4))
    return bytes(changed)


def doubled(rng: random.Random, body: dict[str, Any]) -> bytes:
    """Return a body in which a name occurs twice, with different values."""
    name = rng.choice([*body, "model"])
    more = json.dumps({name: strange(rng)}).encode()
    return json.dumps(body).encode()[:-1] + (b"," if body else b"") + more[1:]
