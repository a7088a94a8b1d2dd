"""What is known of one HTTP request: for its log line and the metrics. Never its text."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace


@dataclass(slots=True)
class RequestRecord:
    """Counts and times of one request; times are of the monotonic clock, in seconds, but `created`, which is Unix time.
    Nobody waits for its answer any longer than `patience` seconds from its start on; None: for ever.

    `token_gaps` are (seconds, tokens): the time since the choice's previous tokens, and how many came then.
    `text_seconds` went into detokenising and stop strings, `send_seconds` into encoding and sending a stream's events,
    waiting for a slow reader included. `owner` is the tenant that it comes from, and `tenant` the name of whose cached
    prefixes it may use (see `Tenants`). `model` is the first name of the model that it got, and `load` says how busy
    that one is (see `load_of`). `ignored`: which fields of its body were left aside (see `ignored`).
    """

    request_id: str
    patience: float | None = None
    trace: str | None = None
    started: float = field(default_factory=time.monotonic)
    created: int = field(default_factory=lambda: int(time.time()))
    owner: str = ""
    tenant: str = ""
    model: str = ""
    load: Callable[[], str] | None = None
    ignored: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    first_token: float | None = None
    text_seconds: float = 0.0
    send_seconds: float = 0.0
    finish_reasons: list[str] = field(default_factory=list)
    token_gaps: list[tuple[float, int]] = field(default_factory=list)
    _last: dict[int, float] = field(default_factory=dict)

    @property
    def until(self) -> float | None:
        """When nobody waits any more."""
        return None if self.patience is None else self.started + self.patience

    def detached(self) -> RequestRecord:
        """A record for work that goes on behind the answer: it counts on its own, and nobody's patience ends it."""
        return replace(self, patience=None, finish_reasons=[], token_gaps=[], _last={})

    def saw(self, choice: int, tokens: int, now: float) -> None:
        """Tokens of a choice arrived."""
        self.completion_tokens += tokens
        if self.first_token is None:
            self.first_token = now
        if choice in self._last and tokens:
            self.token_gaps.append((now - self._last[choice], tokens))
        self._last[choice] = now

    def finished(self, reason: str) -> None:
        """A choice ended, or the client hung up in a stream ("disconnect")."""
        self.finish_reasons.append(reason)
