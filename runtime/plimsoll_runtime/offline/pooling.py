"""Calls of `LLM` for models that compute vectors, scores and labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from plimsoll_runtime.engine.limits import longest_sequence
from plimsoll_runtime.engine.protocol.messages import EngineInfo, RequestOutput
from plimsoll_runtime.errors import ModelError, UsageError
from plimsoll_runtime.text.chat_template import ChatTemplateError
from plimsoll_runtime.text.comparison import comparison
from plimsoll_runtime.text.pooling import (
    PooledText,
    PooledTexts,
    Vector,
    cut,
    dimensions_refused,
    scaled,
    shown_score,
    unpacked,
)
from plimsoll_runtime.text.tokenizer import TextError, Tokenizer

Vectors = NDArray[np.float32]
"""[texts, size]."""

Run = Callable[[Sequence[PooledText]], list[bytes]]
"""Returns the packed vector of each text."""


@dataclass(frozen=True, slots=True)
class Classification:
    """The likeliest label of a text, and the score of each label."""

    label: str
    scores: Mapping[str, float]


class VectorProgress:
    """A request for a vector while it runs."""

    def __init__(self) -> None:
        self._output: RequestOutput | None = None

    def push(self, output: RequestOutput) -> bool:
        """Store the only output of the request, and return True: the request is over."""
        self._output = output
        return True

    def vector(self) -> bytes:
        """Return the packed vector. Raises ModelError if the model could not compute it."""
        if self._output is None or self._output.vector is None:
            raise ModelError((self._output and self._output.error) or "the engine returned no vector")
        return self._output.vector


class PoolingCalls:
    """Calls of one model. They raise UsageError for invalid texts."""

    def __init__(self, tokenizer: Tokenizer, info: EngineInfo, run: Run) -> None:
        assert info.pooling is not None
        self._info = info.pooling
        self._texts = PooledTexts(tokenizer, info.pooling)
        self._longest = longest_sequence(info)
        self._run = run

    def embed(
        self, texts: Sequence[str | Sequence[int]], prompt: str | None, dimensions: int | None, *, truncate: bool
    ) -> Vectors:
        if prompt is not None and prompt not in self._info.prompts:
            raise UsageError(f"the model has no prompt {prompt!r}; it has {', '.join(self._info.prompts) or 'none'}")
        if reason := dimensions_refused(dimensions, self._info):
            raise UsageError(reason)
        most = self._most(truncate)
        read = [self._single(text, prompt, most) for text in texts]
        vectors = [cut(each, dimensions, normalised=self._info.normalised) for each in self._vectors(read)]
        return np.stack(vectors) if vectors else np.empty((0, dimensions or self._info.size), np.float32)

    def score(
        self, ones: Sequence[str], others: Sequence[str], instruction: str | None, *, truncate: bool
    ) -> list[float]:
        if not ones or len(ones) not in (1, len(others)):
            raise UsageError(
                f"`ones` has {len(ones)} texts and `others` {len(others)}; give the same number, or one text in `ones`"
            )
        if instruction is not None and not self._texts.takes_instruction:
            raise UsageError("this model takes no instruction; leave it out")
        most = self._most(truncate)

        def single(text: str, role: str | None, _: bool) -> PooledText:
            return self._single(text, role, most)

        def pair(one: str, other: str) -> PooledText:
            return self._pair(one, other, instruction, most)

        read, scores = comparison(self._texts, self._info, ones, others, single, pair)
        return [shown_score(raw, self._info) for raw in scores(self._vectors(read))]

    def classify(self, texts: Sequence[str | tuple[str, str]], *, truncate: bool) -> list[Classification]:
        most = self._most(truncate)
        read = [
            self._single(text, None, most) if isinstance(text, str) else self._pair(*text, None, most) for text in texts
        ]
        return [self._classified(vector) for vector in self._vectors(read)]

    def _classified(self, vector: Vector) -> Classification:
        scores = scaled(vector, self._info)
        names = self._info.labels
        return Classification(names[int(vector.argmax())], dict(zip(names, scores.tolist(), strict=True)))

    def _vectors(self, texts: Sequence[PooledText]) -> list[Vector]:
        return [unpacked(packed) for packed in self._run(texts)]

    def _most(self, truncate: bool) -> int | None:
        return self._longest if truncate else None

    def _single(self, text: str | Sequence[int], prompt: str | None, most: int | None) -> PooledText:
        if not isinstance(text, str):
            return PooledText(list(text)[:most])
        with _told():
            return self._texts.single(text, prompt, most)

    def _pair(self, one: str, other: str, instruction: str | None, most: int | None) -> PooledText:
        with _told():
            return self._texts.pair(one, other, instruction, most)


@contextmanager
def _told() -> Iterator[None]:
    """Convert errors of texts that cannot be encoded or rendered to UsageError, within the context."""
    try:
        yield
    except (ChatTemplateError, TextError) as error:
        raise UsageError(str(error)) from error
