"""Prepares texts for pooling models (prompts, pairs, truncation), and post-processes their vectors and scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plimsoll_runtime.engine.protocol.pooling import PoolingInfo
from plimsoll_runtime.text.tokenizer import TextError, Tokenizer

QUERY, DOCUMENTS = "query", ("document", "passage", "corpus")
"""Prompt names of sentence-transformers: for the query, and for the documents, of which the first defined one
is used.
"""
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
_JUDGE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
_ANSWER = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
"""The template that Qwen3-Reranker was trained on (from its model card), for files without a template."""


@dataclass(frozen=True, slots=True)
class PooledText:
    """Token ids, and the index at which the second of two texts begins; 0 if there is one text, or the model makes no
    difference.
    """

    ids: Sequence[int]
    second: int = 0


class PooledTexts:
    """Encodes texts for one pooling model. Raises TextError for text that cannot be encoded."""

    def __init__(self, tokenizer: Tokenizer, info: PoolingInfo) -> None:
        self._tokenizer = tokenizer
        self._info = info
        template = tokenizer.chat_template
        source = "" if template is None else template.source(tools=False)
        self._by_template = template if all(word in source for word in ("query", "document")) else None

    @property
    def takes_instruction(self) -> bool:
        """Whether a pair may have an instruction on how to judge it."""
        return self._by_template is not None or self._info.by_tokens

    def single(self, text: str, prompt: str | None = None, most: int | None = None) -> PooledText:
        """Encode a text after the model's prompt of the name `prompt` (None: the default one, if any), truncated to
        `most` tokens. Raises KeyError for an unknown prompt.
        """
        whole = self._before(prompt) + text
        return PooledText(self._tokenizer.encode_cut(self._small(whole), most=most)[0])

    def role(self, names: Sequence[str]) -> str | None:
        """Return the first of these names for which the model has a prompt, or None."""
        return next((name for name in names if name in self._info.prompts), None)

    def pair(self, query: str, text: str, instruction: str | None = None, most: int | None = None) -> PooledText:
        """Encode two texts as one of at most `most` tokens, by truncating the second. If the model's template or
        judging prompt encloses them, they are not truncated: raises TextError if they are longer.
        """
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
            raise TextError(
                f"the pair has {len(ids)} tokens in the model's template, which cannot be truncated to "
                f"{most}; shorten the texts"
            )
        return PooledText(ids)

    def _before(self, prompt: str | None) -> str:
        name = self._info.default_prompt if prompt is None else prompt
        return self._info.prompts[name] if name is not None else ""

    def _small(self, text: str) -> str:
        return text.lower() if self._info.lower_case else text


Vector = NDArray[np.float32]


def unpacked(packed: bytes) -> Vector:
    """Return the vector in an engine's message."""
    return np.frombuffer(packed, np.float32)


def cut(vector: Vector, dimensions: int | None, *, normalised: bool) -> Vector:
    """Return the first `dimensions` numbers of a vector. If it is normalised, the result has length 1 again."""
    if dimensions is None or dimensions >= vector.size:
        return vector
    short = vector[:dimensions]
    return _of_length_one(short) if normalised else short


def dimensions_refused(asked: int | None, info: PoolingInfo) -> str | None:
    """Return why a model's vectors cannot have `asked` dimensions, or None if they can."""
    if asked is None or asked == info.size or asked in info.dimensions:
        return None
    if info.any_dimensions and 0 < asked < info.size:
        return None
    listed = " or ".join(map(str, (*info.dimensions, info.size)))
    may = f"from 1 to {info.size} numbers" if info.any_dimensions else f"{listed} numbers"
    return f"this model's vectors may have {may}, not {asked}"


def similarity(one: Vector, other: Vector) -> float:
    """Return the cosine similarity of two vectors."""
    return float(_of_length_one(one) @ _of_length_one(other))


def raw_score(vector: Vector, info: PoolingInfo) -> float:
    """Return how well a pair of texts matches: the model's score, or the logit of its second score token ("yes") minus
    that of the first.
    """
    return float(vector[-1]) - float(vector[0]) if info.by_tokens and vector.size > 1 else float(vector[0])


def shown_score(raw: float, info: PoolingInfo) -> float:
    """Return a raw score on the model's scale: unchanged, or its sigmoid (for two score tokens, the probability of the
    second).
    """
    return float(_sigmoid(np.asarray(raw))) if info.scale == "sigmoid" else raw


def scaled(scores: Vector, info: PoolingInfo) -> Vector:
    """Return raw scores on the model's scale: a sigmoid of each, a softmax over all, or unchanged."""
    if info.scale == "sigmoid":
        return _sigmoid(scores).astype(np.float32)
    return _softmax(scores) if info.scale == "softmax" else scores


def ranked(scores: Sequence[float], most: int | None = None) -> list[int]:
    """Return the indices of the `most` highest scores, best first; equal scores keep their order."""
    order = sorted(range(len(scores)), key=lambda place: -scores[place])
    return order if most is None else order[:most]


def _sigmoid(scores: NDArray[Any]) -> NDArray[Any]:
    """Avoid overflow by computing exponentials of negative numbers only."""
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
