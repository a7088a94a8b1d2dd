"""The tokenizers of the models that are placed: each read once, beside the event loop, and kept while it is placed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import NamedTuple

from plimsoll_runtime.background import in_daemon_thread
from plimsoll_runtime.text.tokenizer import Tokenizer, load_tokenizer
from plimsoll_runtime.weights.files import ModelFiles

Find = Callable[[], ModelFiles]


class Source(NamedTuple):
    """Where a model comes from: those of one source share a tokenizer.

    `apart`: the namespace that fetches it for itself alone, "" for what is shared.
    """

    model: str
    revision: str | None
    apart: str = ""


def read_tokenizer(files: ModelFiles) -> Tokenizer:
    """The tokenizer, with what is computed of it once. Raises PlimsollError."""
    tokenizer = load_tokenizer(files)
    _ = tokenizer.longest_piece
    return tokenizer


class Tokenizers:
    """By source. Used on the event loop only; reading happens in threads, one at a time where nobody waits."""

    def __init__(self, read: Callable[[ModelFiles], Tokenizer] = read_tokenizer) -> None:
        self._read = read
        self._kept: dict[Source, asyncio.Future[Tokenizer]] = {}

    def __contains__(self, source: Source) -> bool:
        return source in self._kept

    def keep_only(self, sources: Collection[Source]) -> None:
        """Forget all others."""
        for source in self._kept.keys() - set(sources):
            del self._kept[source]

    async def get(self, source: Source, find: Find) -> Tokenizer:
        """The tokenizer; `find` says where its files are, in a thread, if it has to be read.

        Whoever asks while it is being read waits for that, and one who gives up ends it for nobody. Raises what reading
        raises; the next one to ask tries again.
        """
        reading = self._kept.get(source)
        if reading is None:
            reading = self._kept[source] = asyncio.ensure_future(in_daemon_thread(lambda: self._read(find())))
            reading.add_done_callback(lambda done: self._forget_failed(source, done))
        return await asyncio.shield(reading)

    def _forget_failed(self, source: Source, done: asyncio.Future[Tokenizer]) -> None:
        if (done.cancelled() or done.exception() is not None) and self._kept.get(source) is done:
            del self._kept[source]
