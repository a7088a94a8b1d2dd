"""Requests of soak users: mixed prompts, all sampling parameters, and requests that must be refused."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

MODEL = "soaked"
CONTEXT = 1024
"""Maximum tokens of prompt and output together."""
FIRST_TOKEN, VOCAB = 300, 8000
"""Range of prompt ids: plain words in every soaked model."""

WHOLE, HUNG_UP, TOO_LATE = "whole", "hung up", "504 deadline_exceeded"
TOO_LATE_IN_STREAM = "in the stream deadline_exceeded"
"""One of several choices in a stream missed its deadline after another had begun."""
PREFIXES, PREFIX_TOKENS = 4, 256
SALTS = ("tenant-a", "tenant-b")
PROBE_SEED = 20261121


@dataclass(frozen=True, slots=True)
class Ask:
    """One request and its possible results. `expected` are outcomes: WHOLE, HUNG_UP, or "STATUS CODE" of a refusal. A
    complete response has `least` to `most` generated tokens. The client disconnects after `hang_up_events` events of a
    stream, or `hang_up_seconds`.
    """

    kind: str
    body: dict[str, Any] | str
    expected: frozenset[str] = frozenset({WHOLE})
    least: int = 0
    most: int = 0
    hang_up_events: int | None = None
    hang_up_seconds: float | None = None
    method: str = "POST"
    path: str = "/v1/completions"

    @property
    def streams(self) -> bool:
        """Whether the response is a stream of events."""
        return isinstance(self.body, dict) and bool(self.body.get("stream"))


@dataclass(slots=True)
class Traffic:
    """An endless, repeatable supply of requests: a seed always gives the same ones in the same order."""

    seed: int
    policy: str
    _rng: random.Random = field(init=False)
    _prefixes: list[list[int]] = field(init=False)

    def __post_init__(self) -> None:
        # All users share the prefixes, whatever their seeds are.
        shared = random.Random(PROBE_SEED)
        self._prefixes = [_tokens(shared, PREFIX_TOKENS) for _ in range(PREFIXES)]
        self._rng = random.Random(self.seed)

    def next(self) -> Ask:
        """Return the next request. About one in twelve must be refused, and about one in eight may end early, by a
        disconnect or a deadline.
        """
        draw = self._rng.random()
        if draw < 1 / 12:
            return self._refused()
        ask = self._answered()
        if draw < 2 / 12:
            return self._hung_up(ask)
        if draw < 2.5 / 12:
            return self._hurried(ask)
        return ask

    def _answered(self) -> Ask:
        rng = self._rng
        count = 1 if rng.random() < 0.85 else rng.randint(2, 4)
        kind, prompts = self._prompts(count)
        tokens = rng.choice((1, 4, 16, 16, 48, 48, 96, 160))
        body: dict[str, Any] = {"model": MODEL, "prompt": prompts, "max_tokens": tokens, "ignore_eos": True}
        body |= self._sampling() | self._reports() | self._tenant()
        if rng.random() < 0.6:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        least = most = tokens * count
        if rng.random() < 0.2:
            body |= {"stop": [f"w{rng.randrange(VOCAB)}" for _ in range(3)], "ignore_eos": False}
            least = 0
        return Ask(kind, body, least=least, most=most)

    def _prompts(self, count: int) -> tuple[str, list[list[int]]]:
        rng = self._rng
        draw = rng.random()
        if draw < 0.35:
            return "shared prefix", [
                rng.choice(self._prefixes) + _tokens(rng, rng.randint(1, 32)) for _ in range(count)
            ]
        if draw < 0.85:
            return "short prompt", [_tokens(rng, rng.randint(1, 128)) for _ in range(count)]
        return "long prompt", [_tokens(rng, rng.randint(256, CONTEXT - 192)) for _ in range(count)]

    def _sampling(self) -> dict[str, Any]:
        rng = self._rng
        if rng.random() < 0.4:
            return {"temperature": 0}
        chosen: dict[str, Any] = {"temperature": rng.choice((0.3, 0.8, 1.0, 1.7))}
        options: tuple[tuple[str, Callable[[], Any]], ...] = (
            ("top_p", lambda: rng.uniform(0.3, 1.0)),
            ("top_k", lambda: rng.randint(1, 100)),
            ("min_p", lambda: rng.uniform(0.0, 0.2)),
            ("presence_penalty", lambda: rng.uniform(-1, 1)),
            ("frequency_penalty", lambda: rng.uniform(-1, 1)),
            ("repetition_penalty", lambda: rng.uniform(0.8, 1.4)),
            ("logit_bias", lambda: {str(rng.randrange(VOCAB)): rng.uniform(-50, 5) for _ in range(4)}),
            ("seed", lambda: rng.randrange(1000)),
            ("min_tokens", lambda: 1),
        )
        return chosen | {name: value() for name, value in options if rng.random() < 0.3}

    def _reports(self) -> dict[str, Any]:
        draw = self._rng.random()
        if draw < 0.15:
            return {"logprobs": self._rng.randint(0, 5)}
        if draw < 0.2:
            return {"echo": True, "logprobs": 1}
        return {"prompt_logprobs": 1} if draw < 0.25 else {}

    def _tenant(self) -> dict[str, Any]:
        rng = self._rng
        own: dict[str, Any] = {"cache_salt": rng.choice(SALTS)} if rng.random() < 0.4 else {}
        if self.policy == "priority" and rng.random() < 0.3:
            own["priority"] = rng.randint(-5, 5)
        return own

    def _hung_up(self, ask: Ask) -> Ask:
        expected = frozenset({WHOLE, HUNG_UP})
        if ask.streams:
            return replace(ask, kind="hang-up", expected=expected, hang_up_events=self._rng.randint(0, 12))
        return replace(ask, kind="hang-up", expected=expected, hang_up_seconds=self._rng.uniform(0, 0.5))

    def _hurried(self, ask: Ask) -> Ask:
        assert isinstance(ask.body, dict)
        body = ask.body | {"deadline": self._rng.choice((0.001, 0.05, 0.5, 30.0))}
        several = ask.streams and len(ask.body["prompt"]) > 1
        late = {TOO_LATE, TOO_LATE_IN_STREAM} if several else {TOO_LATE}
        return replace(ask, kind="deadline", body=body, expected=frozenset({WHOLE, *late}))

    def _refused(self) -> Ask:
        return self._rng.choice(refusals(self.policy))


def refusals(policy: str) -> list[Ask]:
    """Return invalid requests, each with its expected refusal."""
    good: dict[str, Any] = {"model": MODEL, "prompt": [FIRST_TOKEN], "max_tokens": 1}

    def refused(outcome: str, body: dict[str, Any] | str, **where: str) -> Ask:
        return Ask("to be refused", body, frozenset({outcome}), **where)  # type: ignore[arg-type]

    asks = [
        refused("400 unknown_parameter", good | {"temprature": 1}),
        refused("400 invalid_value", good | {"temperature": -1}),
        refused("400 invalid_value", good | {"top_p": -1}),
        refused("400 invalid_value", good | {"prompt": []}),
        refused("400 invalid_value", good | {"prompt": [2**30]}),
        refused("400 invalid_value", good | {"logit_bias": {"1000000000": 1}}),
        refused("400 missing_required_parameter", {"model": MODEL}),
        refused("400 context_length_exceeded", good | {"prompt": [FIRST_TOKEN] * (CONTEXT + 1)}),
        refused("400 context_length_exceeded", good | {"max_tokens": CONTEXT}),
        refused("400 None", '{"model":'),
        refused("404 model_not_found", good | {"model": "another"}),
        refused("404 None", good, path="/v1/nowhere"),
        refused("405 None", good, method="PUT"),
        refused(
            "400 no_chat_template",
            {"model": MODEL, "messages": [{"role": "user", "content": "w1"}]},
            path="/v1/chat/completions",
        ),
    ]
    if policy != "priority":
        asks.append(refused("400 invalid_value", good | {"priority": 1}))
    return asks


def probes() -> list[Ask]:
    """Return requests with deterministic outputs, whatever else is in the batch: greedy, and with a seed."""
    rng = random.Random(PROBE_SEED + 1)
    shared = _tokens(random.Random(PROBE_SEED), PREFIX_TOKENS)
    greedy: dict[str, Any] = {"model": MODEL, "temperature": 0, "ignore_eos": True}
    seeded: dict[str, Any] = {"model": MODEL, "temperature": 1.0, "top_p": 0.9, "seed": 7, "ignore_eos": True}
    drawn = [
        ("greedy, short", greedy, _tokens(rng, 5), 64),
        ("greedy, one token", greedy, _tokens(rng, 1), 96),
        ("greedy, shared prefix", greedy, shared + _tokens(rng, 7), 48),
        ("greedy, long", greedy, _tokens(rng, 700), 64),
        ("greedy, salted", greedy | {"cache_salt": SALTS[0]}, shared + _tokens(rng, 17), 32),
        ("seeded, short", seeded, _tokens(rng, 40), 64),
        ("seeded, shared prefix", seeded, shared + _tokens(rng, 3), 32),
    ]
    return [
        Ask(f"probe: {name}", base | {"prompt": prompt, "max_tokens": tokens}, least=tokens, most=tokens)
        for name, base, prompt, tokens in drawn
    ]


def _tokens(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(FIRST_TOKEN, VOCAB) for _ in range(count)]
