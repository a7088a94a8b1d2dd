"""A model's tokenizer: converts text to token ids and back, with the `tokenizers` library alone."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import tokenizers

from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.text.chat_template import ChatTemplate
from plimsoll_runtime.text.detokenizer import detokenize, read_spelling
from plimsoll_runtime.text.tokenizer_files import tokenizer_folder
from plimsoll_runtime.text.tokenizer_settings import (
    WHAT_TO_DO,
    TokenizerSettings,
    apply_settings,
    read_settings,
    tokenizer_warnings,
)
from plimsoll_runtime.weights.files import LARGEST_TOKENIZER, check_size, opened

if TYPE_CHECKING:
    from plimsoll_runtime.weights.files import ModelFiles


class _Model(msgspec.Struct):
    continuing_subword_prefix: str | None = None
    merges: msgspec.Raw = msgspec.Raw(b"[]")


class _File(msgspec.Struct):
    """The needed part of a tokenizer.json; reading all of it as Python objects takes a second."""

    model: _Model


def read_backend(path: Path) -> tokenizers.Tokenizer:
    """Return the library's tokenizer. Raises ModelError, SourceError.

    Some kinds of damage, which would end the whole process in the tokenizers library, are checked first.
    """
    check_size(path, LARGEST_TOKENIZER)
    with opened(path) as file:
        data = file.read()
    try:
        _check_merges(msgspec.json.decode(data, type=_File).model)
        return tokenizers.Tokenizer.from_str(data.decode())
    except Exception as error:
        raise ModelError(f"{path} cannot be read: {error}; {WHAT_TO_DO}") from error


def _check_merges(model: _Model) -> None:
    """Raise ValueError for a merge whose second piece lacks the prefix that the library removes.

    The library removes bytes, and a text that starts within a character aborts the process (tokenizers 0.23).
    """
    prefix = model.continuing_subword_prefix
    if not prefix:
        return
    for merge in msgspec.json.decode(model.merges, type=list[str | tuple[str, str]] | None) or ():
        second = merge.partition(" ")[2] if isinstance(merge, str) else merge[1]
        if not second.startswith(prefix):
            raise ValueError(f"the second piece of the merge {str(merge)[:80]!r} does not begin with {prefix[:40]!r}")


logger = logging.getLogger(__name__)

MOST_STOPS_KNOWN = 1024
"""Number of stop strings for which `holds_special` is cached: all choices of a request have the same stop strings."""
MOST_SEARCHED = 1024
"""Limit of characters searched for special tokens, which takes up to 3 us per character."""
_PANIC_MODULE = "pyo3_runtime"
"""Module of the exceptions (derived from BaseException) for Rust panics in the tokenizers library."""


class TextError(ValueError):
    """A text cannot be encoded: it has an unpaired surrogate, or a character that the tokenizer has no token for."""


def load_tokenizer(files: ModelFiles) -> Tokenizer:
    """Return a model's tokenizer with its chat template. Without a tokenizer.json it is converted once and cached.

    Contradictions between its files are logged. Raises ModelError if the files describe no usable tokenizer.

    tokenizer.json is used unchanged. Settings in tokenizer_config.json (special tokens, BOS and EOS) are applied like
    in Transformers, except `clean_up_tokenization_spaces`, which would change the model's text.
    """
    folder = tokenizer_folder(files)
    path = folder / "tokenizer.json"
    backend = read_backend(path)
    settings = read_settings(folder, files.chat_template)
    try:
        tokenizer = Tokenizer(backend, settings)
        tokenizer.encode("")
    except Exception as error:
        raise ModelError(f"the tokenizer in {folder} cannot be used: {error}; {WHAT_TO_DO}") from error
    if not tokenizer.vocab_size:
        raise ModelError(f"{path} has no tokens; {WHAT_TO_DO}")
    for warning in tokenizer_warnings(files, folder, tokenizer):
        logger.warning("%s: %s", files.name, warning)
    return tokenizer


class Tokenizer:
    """Encodes and decodes text. Thread-safe.

    - `special_ids`: ids that skip_special_tokens leaves out; `special_texts` has the text of each.
    - `bos_token`, `eos_token` and their ids are None if the model has none.
    - `chat_template` is None if the model has none.
    - `spelling`: how pieces spell bytes, None for decoders that work on whole texts.
    """

    def __init__(self, backend: tokenizers.Tokenizer, settings: TokenizerSettings) -> None:
        apply_settings(backend, settings)
        self._backend = backend
        self._bytes: dict[int, bytes] = {}
        self._special_held: dict[str, bool] = {}
        self._lone_lengths: dict[int, int | None] = {}
        self.spelling = read_spelling(json.loads(backend.decoder.__getstate__()) if backend.decoder else None)
        added = backend.get_added_tokens_decoder()
        self.special_texts = {token_id: token.content for token_id, token in added.items() if token.special}
        self.special_ids = frozenset(self.special_texts)
        self.vocab_size: int = max(backend.get_vocab_size(with_added_tokens=True), 1 + max(added, default=-1))
        self.bos_token = settings.tokens.get("bos_token")
        self.eos_token = settings.tokens.get("eos_token")
        self.chat_template = ChatTemplate(settings.templates, settings.tokens) if settings.templates else None

    @property
    def bos_token_id(self) -> int | None:
        """Id of the BOS token, or None."""
        return self.token_id(self.bos_token) if self.bos_token else None

    @property
    def eos_token_id(self) -> int | None:
        """Id of the EOS token, or None (a model may have further ones: see text.special_tokens)."""
        return self.token_id(self.eos_token) if self.eos_token else None

    @cached_property
    def longest_piece(self) -> int:
        """Upper bound for the characters of text that one token stands for, also those that a normalizer may join."""
        return 4 * max(map(len, self._backend.get_vocab(with_added_tokens=True)))

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of a text; special tokens written in it are recognised. Raises TextError.

        Uses the library's batch interface because only that lets other threads run during the call.
        """
        return list(self._encoded([text], add_special_tokens=add_special_tokens)[0].ids)

    def starts(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return, for each token of `encode`, the index of the character at which it starts. A token added by the
        tokenizer starts at the end of the token before it. Raises TextError.
        """
        encoded = self._guarded(self._backend.encode_batch, [text], add_special_tokens=add_special_tokens)[0]
        starts, end = list[int](), 0
        for token_id, (start, stop) in zip(encoded.ids, encoded.offsets, strict=True):
            piece = self.token_text(token_id)
            # Some tokenizers exclude white space at a token's ends from its offsets.
            places = start, start - (len(piece) - len(piece.lstrip()))
            found = [place for place in places if place >= 0 and piece and text.startswith(piece, place)]
            starts.append(end if stop <= start else found[0] if found else min(start, end))
            end = max(end, stop)
        return starts

    def encode_cut(self, text: str, pair: str | None = None, *, most: int | None = None) -> tuple[list[int], int]:
        """Return the token ids of a text (or of two texts as one) with special tokens, and the index of the second text
        (0 if there is none, or if the model does not mark it).

        To have at most `most` tokens, the end of the (second) text is cut off. Raises TextError, also if the rest alone
        is too long.
        """
        first, *rest = self._encoded([text] if pair is None else [text, pair], add_special_tokens=False)
        second = rest[0] if rest else None
        if most is not None:
            beside = self._backend.num_special_tokens_to_add(is_pair=second is not None)
            beside += 0 if second is None else len(first.ids)
            if most <= beside:
                if second is None:
                    raise TextError(f"the special tokens alone are {beside} tokens, but the limit is {most}")
                raise TextError(
                    f"special tokens and the first text have {beside} tokens and cannot be truncated, but the limit is "
                    f"{most}; shorten the first text"
                )
            (first if second is None else second).truncate(most - beside)
        whole = self._backend.post_process(first, second, add_special_tokens=True)
        return list(whole.ids), 0 if second is None or 1 not in whole.type_ids else whole.type_ids.index(1)

    def _encoded(self, texts: list[str], *, add_special_tokens: bool) -> list[tokenizers.Encoding]:
        return self._guarded(self._backend.encode_batch_fast, texts, add_special_tokens=add_special_tokens)

    @staticmethod
    def _guarded(
        encode: Callable[..., list[tokenizers.Encoding]], texts: list[str], *, add_special_tokens: bool
    ) -> list[tokenizers.Encoding]:
        try:
            return encode(texts, add_special_tokens=add_special_tokens)
        except (UnicodeEncodeError, TypeError) as error:
            raise TextError("the text has an unpaired surrogate, which is not a character") from error
        except BaseException as error:
            if not isinstance(error, Exception) and type(error).__module__ != _PANIC_MODULE:
                raise
            raise TextError(f"the model's tokenizer cannot encode the text: {error}") from error

    def holds_special(self, text: str) -> bool:
        """Return whether a text, such as a stop string, contains a special token's text. Texts above MOST_SEARCHED
        characters are not searched.
        """
        if len(text) > MOST_SEARCHED:
            return False
        known = self._special_held.get(text)
        if known is None:
            begins, lengths = self._special_beginnings
            known = any(
                text[at : at + length] in self._special_contents
                for at, character in enumerate(text)
                if character in begins
                for length in lengths
            )
            if len(self._special_held) >= MOST_STOPS_KNOWN:
                self._special_held.clear()
            self._special_held[text] = known
        return known

    @cached_property
    def _special_contents(self) -> frozenset[str]:
        return frozenset(filter(None, self.special_texts.values()))

    @cached_property
    def _special_beginnings(self) -> tuple[frozenset[str], frozenset[int]]:
        """The first characters and the lengths of the texts of special tokens."""
        return frozenset(text[0] for text in self._special_contents), frozenset(map(len, self._special_contents))

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of all ids. Bytes that are not UTF-8 become U+FFFD, one for each incomplete character (like
        `errors="replace"` in Python).
        """
        return detokenize(self, ids, skip_special_tokens=skip_special_tokens)

    def decode_pieces(self, ids: Sequence[int]) -> str:
        """Decode with the tokenizers library, including special tokens: for tokenizers whose `spelling` is None."""
        return str(self._backend.decode(list(ids), skip_special_tokens=False))

    def token_id(self, piece: str) -> int | None:
        """Return the id of a piece as the vocabulary spells it, or None."""
        found: int | None = self._backend.token_to_id(piece)
        return found

    def lone_length(self, token_id: int) -> int | None:
        """Return the number of characters of one token's text alone, or None for an id outside the vocabulary (models
        pad it).
        """
        if token_id not in self._lone_lengths:
            known = self._backend.id_to_token(token_id) is not None
            self._lone_lengths[token_id] = len(self.decode_pieces([token_id])) if known else None
        return self._lone_lengths[token_id]

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that a token adds to a text; b"" for ids outside the vocabulary."""
        known = self._bytes.get(token_id)
        if known is None:
            known = self._bytes[token_id] = self._spell(token_id)
        return known

    def token_text(self, token_id: int) -> str:
        r"""Return a token as text; "bytes:\\xe2\\x82" if it is only part of a character."""
        spelled = self.token_bytes(token_id)
        try:
            return spelled.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{value:02x}" for value in spelled)

    def _spell(self, token_id: int) -> bytes:
        piece = self._backend.id_to_token(token_id)
        if piece is None:
            return b""
        return self.spelling.bytes_of(piece) if self.spelling else self.decode_pieces([token_id]).encode()
