"""Requests of all kinds to all paths, generated from the server's own OpenAPI document.

A seed always generates the same requests, except for ids that the server has assigned by then.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote, urlencode

from fuzz.damage import change, doubled, flipped, nested, strange
from fuzz.values import WORDS, Draw, Values

MODEL = "fuzzed"
GENERATOR, EMBEDDER, CLASSIFIER = "generator", "embedder", "classifier"
HOMES: Mapping[str, str] = {
    "/v1/embeddings": EMBEDDER,
    "/v1/score": EMBEDDER,
    "/v1/rerank": EMBEDDER,
    "/v2/rerank": EMBEDDER,
    "/v1/classify": CLASSIFIER,
}
"""Server whose model answers at a path, for paths that do not generate."""
KEEPING = ("/v1/files", "/v1/batches")
"""Paths at which servers without file storage answer 501."""
KEPT_IDS = 30
BOUNDARY = "----fuzz"
JSON = "application/json"
STRANGE_TARGETS = (
    "/",
    "//",
    "/v1",
    "/v1/models/%00",
    "/v1/models/%ff%fe",
    "/v1/models/../../etc/passwd",
    "/v1/models/" + "x" * 5000,
    "/v1/chat/completions/",
    "/v1/completions?stream=true&a=%zz",
    "/v1/responses/%2e%2e",
    "/v1/files/..%2f..%2fetc%2fpasswd/content",
    "/v1/files/" + "f" * 3000,
    "/v1/batches/%00/cancel",
    "/v1/audio/speech",
    "/health/../v1/models",
    "/metrics;x",
    "*",
    "http://elsewhere/v1/models",
)
METHODS = ("GET", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "HEAD", "FOO", "POST")
HEADERS: tuple[Mapping[str, str], ...] = (
    {"Content-Type": "text/plain"},
    {"Content-Type": ""},
    {"Content-Type": f"{JSON}; charset=utf-16"},
    {"Content-Type": f"{JSON};" * 50},
    {"Content-Type": "application/x-www-form-urlencoded"},
    {"Content-Type": "multipart/form-data"},
    {"Content-Type": "multipart/form-data; boundary=" + "b" * 300},
    {"Content-Encoding": "gzip"},
    {"Authorization": "Bearer \xff"},
    {"Authorization": "Basic Og=="},
    {"X-Request-Id": "a b"},
    {"X-Request-Id": "x" * 500},
    {"X-Plimsoll-Tenant": "somebody"},
    {"X-Plimsoll-Patience": "-1"},
    {"anthropic-version": "\xe4"},
    {"traceparent": "00-" + "0" * 32},
    {"Accept": "image/png"},
    {"Expect": "100-continue"},
    {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Key": "x"},
    {"Upgrade": "h2c", "Connection": "Upgrade"},
    {"Cookie": "=;=;" * 100},
    {"Host": "\xff\xfe"},
    {"Transfer-Encoding": "gzip"},
    {"Content-Length": "-1"},
    {"Content-Length": "abc"},
    {"Content-Length": "9" * 20},
    {"Content-Length": str(2**40)},
    {f"X-{index}": "y" * 100 for index in range(50)},
    {"X-Long": "z" * 70_000},
)


@dataclass(frozen=True, slots=True)
class Fuzzed:
    """One request as bytes. `operation`: its method and path in the document, None if the response is not checked
    against it. `valid`: whether its body follows the document. `answered`: whether a response is expected at all.
    `hang_up`: number of bytes of the response's body after which the client disconnects. `dated`: it sets a deadline,
    which may pass.
    """

    kind: str
    server: str
    data: bytes
    operation: tuple[str, str] | None = None
    valid: bool = False
    answered: bool = True
    hang_up: int | None = None
    dated: bool = False


@dataclass(slots=True)
class Known:
    """Ids that the servers have assigned, newest last."""

    responses: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    batches: list[str] = field(default_factory=list)

    def learn(self, path: str, answer: Mapping[str, Any]) -> None:
        """Store the id in a successful response of `path`, if requests to that path create objects."""
        lists = {"/v1/responses": self.responses, "/v1/files": self.files, "/v1/batches": self.batches}
        if path in lists and isinstance(found := answer.get("id"), str):
            lists[path].append(found)
            del lists[path][:-KEPT_IDS]


class Requests:
    """An endless iterator over random requests of all kinds."""

    def __init__(self, document: Mapping[str, Any], seed: int, known: Known) -> None:
        self._rng = random.Random(seed)
        self._known = known
        self._document = document
        hints: dict[str, Draw] = {
            "model": lambda _rng: MODEL,
            "previous_response_id": lambda rng: rng.choice([None, None, *known.responses]),
            "input_file_id": lambda rng: rng.choice(known.files or ["file-0"]),
        }
        self._values = Values(document, self._rng, hints)
        self._operations = [
            (method, path) for path, methods in document["paths"].items() for method in methods if path != "/docs"
        ]
        self._bodied = [(m, p) for m, p in self._operations if JSON in self._described(m, p)]
        self._fields = [
            (name, schema)
            for method, path in self._bodied
            for name, schema in self._schema(method, path)["properties"].items()
        ]
        self._kinds: list[tuple[int, Callable[[], Fuzzed]]] = [
            (26, self._as_described),
            (30, self._changed),
            (6, self._nested),
            (6, self._flipped),
            (3, self._doubled),
            (4, self._under_headers),
            (4, self._at_targets),
            (3, self._cut),
            (8, self._hung_up),
            (5, self._asked_for),
            (5, self._uploaded),
        ]

    def __iter__(self) -> Iterator[Fuzzed]:
        weights, kinds = zip(*self._kinds, strict=True)
        while True:
            yield self._rng.choices(kinds, weights)[0]()

    def _as_described(self) -> Fuzzed:
        method, path, body = self._bodied_one()
        return self._sent("as described", method, path, body, valid=True)

    def _changed(self) -> Fuzzed:
        method, path, body = self._bodied_one()
        others = [(name, self._values.field(name, schema)) for name, schema in self._rng.sample(self._fields, 3)]
        for _ in range(self._rng.randint(1, 3)):
            change(self._rng, body, others)
        return self._sent("changed", method, path, body)

    def _nested(self) -> Fuzzed:
        method, path, body = self._bodied_one()
        return self._sent("nested", method, path, nested(self._rng, body))

    def _flipped(self) -> Fuzzed:
        method, path, body = self._bodied_one()
        return self._sent("flipped bytes", method, path, flipped(self._rng, json.dumps(body).encode()))

    def _doubled(self) -> Fuzzed:
        method, path, body = self._bodied_one()
        return self._sent("doubled names", method, path, doubled(self._rng, body))

    def _under_headers(self) -> Fuzzed:
        method, path, body = self._bodied_one()
        data, headers = json.dumps(body).encode(), self._rng.choice(HEADERS)
        whole = headers.get("Content-Length") is None and headers.get("Transfer-Encoding") is None
        return Fuzzed(
            "strange headers",
            self._home(path),
            request(method, path, data, headers),
            (method.lower(), path) if whole else None,
            answered=whole,
            dated=_dated(body),
        )

    def _at_targets(self) -> Fuzzed:
        rng = self._rng
        path = rng.choice([*STRANGE_TARGETS, *(self._filled(p) for _, p in rng.sample(self._operations, 3))])
        return Fuzzed("strange targets", self._home(path), request(rng.choice(METHODS), path, b"{}"))

    def _cut(self) -> Fuzzed:
        """Return a request whose bytes end early, or whose body has invalid chunks."""
        method, path, body = self._bodied_one()
        data, rng = json.dumps(body).encode(), self._rng
        if rng.random() < 0.5:
            whole = request(method, path, data)
            sent = whole[: rng.randrange(1, len(whole))]
        else:
            tail = rng.choice((b"zz\r\n{}", b"f" * 20 + b"\r\n{}", b"5\r\nab", b"", b"0\r\nX: y\r\n", b"-1\r\n\r\n"))
            sent = request(method, path, b"", {"Transfer-Encoding": "chunked", "Content-Length": ""}) + tail
        return Fuzzed("cut", self._home(path), sent, answered=False)

    def _hung_up(self) -> Fuzzed:
        method, path, body = self._bodied_one()
        if "stream" in body or self._rng.random() < 0.7:
            body["stream"] = True
        asked = self._sent("hung up", method, path, body)
        return replace(asked, hang_up=self._rng.choice((0, 0, 1, 100, 1000)))

    def _asked_for(self) -> Fuzzed:
        """Return a request without body: lists, stored objects, pages."""
        rng = self._rng
        method, path = rng.choice([one for one in self._operations if one not in self._bodied])
        told = self._document["paths"][path][method].get("parameters", ())
        query = {p["name"]: self._values.of(p["schema"]) for p in told if p["in"] == "query" and rng.random() < 0.5}
        if query and rng.random() < 0.3:
            query[rng.choice(list(query))] = strange(rng)
        texts = {name: str(value).encode("utf-8", "replace") for name, value in query.items()}
        target = self._filled(path) + (f"?{urlencode(texts)}" if texts else "")
        headers = {"anthropic-version": "2023-06-01"} if rng.random() < 0.2 else {}
        server = rng.choice((GENERATOR, GENERATOR, EMBEDDER, CLASSIFIER)) if "/v1/models" in path else GENERATOR
        return Fuzzed("asked for", server, request(method.upper(), target, b"", headers), (method, path))

    def _uploaded(self) -> Fuzzed:
        """Return an upload of batch lines, some of them invalid, in a form that may be malformed."""
        rng = self._rng
        lines = []
        for number in range(rng.randint(0, 4)):
            _, path, body = self._bodied_one()
            body.pop("stream", None)
            line = {"custom_id": str(number), "method": "POST", "url": path, "body": body}
            if rng.random() < 0.3:
                change(rng, line, ())
            lines.append(json.dumps(line).encode())
        content = b"\n".join(lines)
        if rng.random() < 0.2:
            content = flipped(rng, content)
        fields = {"purpose": "batch" if rng.random() < 0.9 else rng.choice(WORDS)}
        if rng.random() < 0.2:
            fields |= {"expires_after[anchor]": "created_at", "expires_after[seconds]": rng.choice(("3600", "1", "x"))}
        data = form(fields, content)
        broken = rng.random() < 0.3
        if broken:
            data = flipped(rng, data)
        headers = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
        return Fuzzed("uploaded", GENERATOR, request("POST", "/v1/files", data, headers), ("post", "/v1/files"))

    def _bodied_one(self) -> tuple[str, str, dict[str, Any]]:
        method, path = self._rng.choice(self._bodied)
        body = self._values.object(self._schema(method, path))
        if path == "/v1/responses" and body.get("background"):
            body["store"] = True
        return method.upper(), path, body

    def _sent(self, kind: str, method: str, path: str, body: Any, *, valid: bool = False) -> Fuzzed:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        operation = (method.lower(), path)
        return Fuzzed(kind, self._home(path), request(method, path, data), operation, valid, dated=_dated(data))

    def _home(self, path: str) -> str:
        """Return the name of the server for a path; sometimes of one whose model is of another kind."""
        if self._rng.random() < 0.05 and not path.startswith(KEEPING):
            return self._rng.choice((GENERATOR, EMBEDDER, CLASSIFIER))
        return HOMES.get(path, GENERATOR)

    def _filled(self, path: str) -> str:
        """Return a path with its parameters replaced by an existing id, or by a missing one."""

        def chosen(found: re.Match[str]) -> str:
            ids = {
                "response_id": self._known.responses,
                "file_id": self._known.files,
                "batch_id": self._known.batches,
                "name": [MODEL],
            }[found[1]]
            if ids and self._rng.random() < 0.8:
                return self._rng.choice(ids)
            return quote(str(strange(self._rng)).encode("utf-8", "replace")[:200], safe="") or "x"

        return re.sub(r"{(\w+)}", chosen, path)

    def _described(self, method: str, path: str) -> Mapping[str, Any]:
        """Return the OpenAPI descriptions of an operation's body by media type, {} if it has none."""
        content: Mapping[str, Any] = self._document["paths"][path][method].get("requestBody", {}).get("content", {})
        return content

    def _schema(self, method: str, path: str) -> Any:
        return self._values.resolved(self._described(method, path)[JSON]["schema"])


def request(method: str, target: str, body: bytes, headers: Mapping[str, str] | None = None) -> bytes:
    """Return the bytes of an HTTP request. `headers` are added to the usual ones, or replace them; an empty
    Content-Length omits that header.
    """
    usual = {"Host": "h", "Content-Type": JSON, "Content-Length": str(len(body)), "Connection": "close"}
    told = {**usual, **(headers or {})}
    lines = [f"{method} {target} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in told.items() if (name, value) != ("Content-Length", "")]
    return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace") + body


def form(fields: Mapping[str, str], content: bytes) -> bytes:
    """Return a multipart form with these fields, and with `content` as a file."""
    parts = [
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
        for name, value in fields.items()
    ]
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="lines.jsonl"\r\n\r\n'
    return b"".join([*parts, head.encode(), content, f"\r\n--{BOUNDARY}--\r\n".encode()])


def _dated(body: Any) -> bool:
    return b"deadline" in (body if isinstance(body, bytes) else json.dumps(body).encode())
