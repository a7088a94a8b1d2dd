"""Texts for models that pool (prompts, pairs, truncation), and what is done to their vectors and scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plimsoll_runtime.engine.protocol.pooling import PoolingInfo
from plimsoll_runtime.text.tokenizer import TextError, Tokenizer

QUERY, DOCUMENTS = "query", ("document", "passage", "corpus")
"""Names of prompts, as sentence-transformers has them: of what asks, and of what is searched, the first there is."""
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
_JUDGE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
_ANSWER = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
"""What Qwen3-Reranker was trained on, by its model card, for files that carry no template of it."""


@dataclass(frozen=True, slots=True)
class PooledText:
    """Token ids, and where the second of two texts begins; 0: there is one, or nobody tells them apart."""

    ids: Sequence[int]
    second: int = 0


class PooledTexts:
    """Makes token ids of texts for one model. Raises TextError for what cannot be encoded."""

    def __init__(self, tokenizer: Tokenizer, info: PoolingInfo) -> None:
        self._tokenizer = tokenizer
        self._info = info
        template = tokenizer.chat_template
        source = "" if template is None else template.source(tools=False)
        self._by_template = template if all(word in source for word in ("query", "document")) else None

    @property
    def takes_instruction(self) -> bool:
        """Whether a pair may come with a word on how to judge it."""
        return self._by_template is not None or self._info.by_tokens

    def single(self, text: str, prompt: str | None = None, most: int | None = None) -> PooledText:
        """One text behind a prompt, cut to so many tokens. Raises KeyError for a prompt that the model has not."""
        whole = self._before(prompt) + text
        return PooledText(self._tokenizer.encode_cut(self._small(whole), most=most)[0])

    def role(self, names: Sequence[str]) -> str | None:
        """The first of these names that the model has a prompt for."""
        return next((name for name in names if name in self._info.prompts), None)

    def pair(self, query: str, text: str, instruction: str | None = None, most: int | None = None) -> PooledText:
        """Two texts as one, of which the second is cut where they are too long."""
        query, text = self._small(query), self._small(text)
        if self._by_template is not None:
            messages = [{"role": "query", "content": query}, {"role": "document", "content": text}]
            if instruction is not None:
                messages.insert(0, {"role": "system", "content": instruction})
            written = self._by_template.render(messages, add_generation_prompt=True)
            return self._fitting(self._tokenizer.encode(written, add_special_tokens=False), most)
        if self._info.by_tokens:
            asked = f"<Instruct>: {instruction or INSTRUCTION}\n<Query>: {query}\n<Document>: {text}"
            written = f"{_JUDGE}{asked}{_ANSWER}"
            return self._fitting(self._tokenizer.encode(written, add_special_tokens=False), most)
        return PooledText(*self._tokenizer.encode_cut(query, text, most=most))

    @staticmethod
    def _fitting(ids: Sequence[int], most: int | None) -> PooledText:
        if most is not None and len(ids) > most:
            raise TextError(f"the pair has {len(ids)} tokens in the model's own form, which cannot be cut to {most}")
        return PooledText(ids)

    def _before(self, prompt: str | None) -> str:
        name = self._info.default_prompt if prompt is None else prompt
        return self._info.prompts[name] if name is not None else ""

    def _small(self, text: str) -> str:
        return text.lower() if self._info.lower_case else text


Vector = NDArray[np.float32]


def unpacked(packed: bytes) -> Vector:
    """A vector as an engine sends it."""
    return np.frombuffer(packed, np.float32)


def cut(vector: Vector, dimensions: int | None, *, normalised: bool) -> Vector:
    """Its first numbers; what had length 1 has it again."""
    if dimensions is None or dimensions >= vector.size:
        return vector
    short = vector[:dimensions]
    return _of_length_one(short) if normalised else short


def dimensions_refused(asked: int | None, info: PoolingInfo) -> str | None:
    """Why a model's vectors may not be cut to so many numbers; None where they may."""
    if asked is None or asked == info.size or asked in info.dimensions:
        return None
    if info.any_dimensions and 0 < asked < info.size:
        return None
    listed = " or ".join(map(str, (*info.dimensions, info.size)))
    may = f"from 1 to {info.size} numbers" if info.any_dimensions else f"{listed} numbers"
    return f"this model's vectors may have {may}, not {asked}"


def similarity(one: Vector, other: Vector) -> float:
    """The cosine of the angle between two vectors."""
    return float(_of_length_one(one) @ _of_length_one(other))


def raw_score(vector: Vector, info: PoolingInfo) -> float:
    """How well the texts of a pair go together, by what came of it; of two tokens, how much more speaks for it."""
    return float(vector[-1]) - float(vector[0]) if info.by_tokens and vector.size > 1 else float(vector[0])


def shown_score(raw: float, info: PoolingInfo) -> float:
    """A raw score as the model means it: of two tokens the probability of one, as if there were no others."""
    return float(_sigmoid(np.asarray(raw))) if info.scale == "sigmoid" else raw


def scaled(scores: Vector, info: PoolingInfo) -> Vector:
    """Raw scores as the model means them: each by itself, or all together as probabilities."""
    if info.scale == "sigmoid":
        return _sigmoid(scores).astype(np.float32)
    return _softmax(scores) if info.scale == "softmax" else scores


def ranked(scores: Sequence[float], most: int | None = None) -> list[int]:
    """The places of the highest scores, the best first; of equals the one that came first."""
    order = sorted(range(len(scores)), key=lambda place: -scores[place])
    return order if most is None else order[:most]


def _sigmoid(scores: NDArray[Any]) -> NDArray[Any]:
    """Without overflow: both halves of it are of numbers below 0."""
    small = np.exp(-np.abs(scores))
    found: NDArray[Any] = np.where(scores >= 0, 1 / (1 + small), small / (1 + small))
    return found


def _softmax(scores: Vector) -> Vector:
    parts = np.exp(scores - scores.max())
    found: Vector = (parts / parts.sum()).astype(np.float32)
    return found


def _of_length_one(vector: Vector) -> Vector:
    length = float(np.linalg.norm(vector))
    return vector / np.float32(length) if length else vector
