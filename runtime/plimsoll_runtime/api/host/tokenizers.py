"""The tokenizers of placed models: each is read once, off the event loop, and kept while its model is placed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from typing import NamedTuple

from plimsoll_runtime.text.tokenizer import Tokenizer, load_tokenizer
from plimsoll_runtime.utils.threads import in_daemon_thread
from plimsoll_runtime.weights.files import ModelFiles

FAILED_SECONDS = 30.0
"""Seconds after a failed read in which requests for the tokenizer's models are refused without waking them."""


class TokenizerSource(NamedTuple):
    """Source of a model; models with the same source share a tokenizer.

    `apart` is the namespace of a private model, "" for a shared one. `root` is the folder of its files.
    """

    model: str
    revision: str | None
    apart: str = ""
    root: str = ""


class Failure(NamedTuple):
    """Why a tokenizer could not be read, and the seconds until the next attempt."""

    error: BaseException
    seconds: float


def read_tokenizer(files: ModelFiles) -> Tokenizer:
    """Return the tokenizer, with its slow property `longest_piece` computed in advance. Raises PlimsollError."""
    tokenizer = load_tokenizer(files)
    _ = tokenizer.longest_piece
    return tokenizer


class Tokenizers:
    """Tokenizers by source. Used on the event loop only. Reading happens in threads."""

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
        """Forget the tokenizers and failures of all other sources."""
        for source in self._kept.keys() - set(sources):
            del self._kept[source]
        for source in self._failed.keys() - set(sources):
            del self._failed[source]

    def failure(self, source: TokenizerSource) -> Failure | None:
        """Return why a tokenizer could not be read; None if it could, or may be tried again."""
        if source not in self._failed:
            return None
        error, until = self._failed[source]
        seconds = until - self._clock()
        return Failure(error, seconds) if seconds > 0 else None

    async def get(self, source: TokenizerSource, files: ModelFiles) -> Tokenizer:
        """Return the tokenizer; read it in a thread if necessary.

        Concurrent callers wait for the same read, and cancelling one of them does not end it. Raises what the read
        raises; the next call reads again.
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
