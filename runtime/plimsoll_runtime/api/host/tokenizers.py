"""The tokenizers of the models that are placed: each read once, beside the event loop, and kept while it is placed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from typing import NamedTuple

from plimsoll_runtime.text.tokenizer import Tokenizer, load_tokenizer
from plimsoll_runtime.utils.threads import in_daemon_thread
from plimsoll_runtime.weights.files import ModelFiles

FAILED_SECONDS = 30.0
"""How long it is remembered that a tokenizer cannot be read: no model is woken for it meanwhile."""


class TokenizerSource(NamedTuple):
    """Where a model comes from: those of one source share a tokenizer.

    `apart`: the namespace that fetches it for itself alone, "" for what is shared. `root`: where it was found.
    """

    model: str
    revision: str | None
    apart: str = ""
    root: str = ""


class Failure(NamedTuple):
    """Why a tokenizer could not be read, and the seconds until it is tried again."""

    error: BaseException
    seconds: float


def read_tokenizer(files: ModelFiles) -> Tokenizer:
    """The tokenizer, with what is computed of it once. Raises PlimsollError."""
    tokenizer = load_tokenizer(files)
    _ = tokenizer.longest_piece
    return tokenizer


class Tokenizers:
    """By source. Used on the event loop only; reading happens in threads, one at a time where nobody waits."""

    def __init__(
        self, read: Callable[[ModelFiles], Tokenizer] = read_tokenizer, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._read = read
        self._clock = clock
        self._failed: dict[TokenizerSource, tuple[BaseException, float]] = {}
        self._kept: dict[TokenizerSource, asyncio.Future[Tokenizer]] = {}

    def __contains__(self, source: TokenizerSource) -> bool:
        return source in self._kept

    def keep_only(self, sources: Collection[TokenizerSource]) -> None:
        """Forget all others."""
        for source in self._kept.keys() - set(sources):
            del self._kept[source]
        for source in self._failed.keys() - set(sources):
            del self._failed[source]

    def failure(self, source: TokenizerSource) -> Failure | None:
        """Why it could not be read, for half a minute; None where it can be, or may be tried again."""
        if source not in self._failed:
            return None
        error, until = self._failed[source]
        seconds = until - self._clock()
        return Failure(error, seconds) if seconds > 0 else None

    async def get(self, source: TokenizerSource, files: ModelFiles) -> Tokenizer:
        """The tokenizer, read in a thread if it has to be.

        Whoever asks while it is being read waits for that, and one who gives up ends it for nobody. Raises what reading
        raises; the next one to ask tries again.
        """
        reading = self._kept.get(source)
        if reading is None:
            reading = self._kept[source] = asyncio.ensure_future(in_daemon_thread(lambda: self._read(files)))
            reading.add_done_callback(lambda done: self._forget_failed(source, done))
        return await asyncio.shield(reading)

    def _forget_failed(self, source: TokenizerSource, done: asyncio.Future[Tokenizer]) -> None:
        error = asyncio.CancelledError() if done.cancelled() else done.exception()
        if self._kept.get(source) is not done:
            return
        self._failed.pop(source, None)
        if error is not None:
            del self._kept[source]
            if not done.cancelled():
                self._failed[source] = (error, self._clock() + FAILED_SECONDS)
