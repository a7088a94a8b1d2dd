"""`python -m structured.run`: compiles schemas and computes masks, with llguidance and (if installed) xgrammar.

(`pip install --no-deps xgrammar apache-tvm-ffi`.) Vocabularies of three sizes and schemas of increasing difficulty.
Both walk through the same valid documents; a mask that excludes the document's next token ends the walk. Times are CPU
times. Vocabularies of 32,000 and 128,000 are trained on Python's own library, the third is the demo model's.
"""

from __future__ import annotations

import functools
import json
import statistics
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

import question
from options import Options
from plimsoll_runtime.engine.protocol.constraint import Constraint
from plimsoll_runtime.structured.grammar import limits, to_llguidance
from plimsoll_runtime.structured.vocabulary import compiled, vocabulary_of
from plimsoll_runtime.text.tokenizer import Tokenizer as Ours
from plimsoll_runtime.text.tokenizer import read_backend
from plimsoll_runtime.text.tokenizer_files import tokenizer_folder
from plimsoll_runtime.text.tokenizer_settings import TokenizerSettings
from plimsoll_runtime.weights.sources.resolve import resolve
from tables import NOT_APPLICABLE, Sheet

END = "</s>"
TRAINED = (32_000, 128_000)
FILES = 400


class Case(NamedTuple):
    """A schema, and a document that it accepts."""

    schema: dict[str, Any]
    document: object


class Walk(NamedTuple):
    """Milliseconds of compiling and of each mask. `left_out`: the first token that a mask excludes wrongly, or None."""

    compiled: float
    masks: list[float]
    left_out: int | None


def flat(count: int) -> Case:
    """Return a case of an object with this number of fields, all required."""
    kinds = ("string", "integer", "boolean")
    fields = {f"field_{i}": {"type": kinds[i % 3]} for i in range(count)}
    schema = {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}
    return Case(schema, {f"field_{i}": (f"text {i} ünï", i * 37, True)[i % 3] for i in range(count)})


def cases() -> dict[str, Case]:
    """Return cases by name, the easy ones first."""
    node = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "children": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
        "required": ["name", "children"],
    }
    kinds = [
        {
            "type": "object",
            "properties": {"kind": {"const": f"k{i}"}, f"v{i}": {"type": "number"}},
            "required": ["kind", f"v{i}"],
            "additionalProperties": False,
        }
        for i in range(30)
    ]
    bounds = {
        "n": {"type": "integer", "minimum": 17, "maximum": 98765},
        "s": {"type": "string", "minLength": 10, "maxLength": 400},
        "a": {
            "type": "array",
            "items": {"type": "integer", "minimum": 0, "maximum": 255},
            "minItems": 3,
            "maxItems": 60,
        },
    }
    patterns = {
        "d": {"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}Z$"},
        "e": {"type": "string", "format": "email"},
        "u": {"type": "string", "format": "uuid"},
    }
    options = {"c": {"enum": [f"value-{i:04d}" for i in range(2000)]}}
    return {
        "any object": Case({"type": "object"}, {"a": [1, 2, {"b": "c"}], "k": "hello world, a text", "n": None}),
        "5 fields": flat(5),
        "200 fields": flat(200),
        "2,000 options": Case({"type": "object", "properties": options, "required": ["c"]}, {"c": "value-1234"}),
        "patterns": Case(
            {"type": "object", "properties": patterns, "required": list(patterns)},
            {"d": "2026-11-23T03:04Z", "e": "someone@example.com", "u": "123e4567-e89b-12d3-a456-426614174000"},
        ),
        "recursive": Case(
            {"$ref": "#/$defs/node", "$defs": {"node": node}},
            {"name": "r", "children": [{"name": f"c{i}", "children": []} for i in range(12)]},
        ),
        "30 kinds": Case(
            {"type": "array", "items": {"anyOf": kinds}}, [{"kind": f"k{i}", f"v{i}": i * 1.5} for i in range(10)]
        ),
        "bounds": Case(
            {"type": "object", "properties": bounds, "required": list(bounds)},
            {"n": 4711, "s": "some long text " * 20, "a": list(range(0, 200, 5))},
        ),
    }


def trained_tokenizer(size: int) -> Tokenizer:
    """Return a byte-level tokenizer trained on the sources of Python's library."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    sources = sorted(Path(sysconfig.get_path("stdlib")).glob("**/*.py"))[: FILES * size // 1000]
    tokenizer.train_from_iterator((path.read_text(errors="replace") for path in sources), trainer)
    return tokenizer


@functools.cache
def trained(size: int) -> Ours:
    """Return the trained tokenizer in the engine's form."""
    return Ours(trained_tokenizer(size), TokenizerSettings(tokens={"eos_token": END}))


def demo() -> Ours:
    """Return the demo model's tokenizer."""
    folder = tokenizer_folder(resolve("demo://gemma-3-270m"))
    return Ours(read_backend(folder / "tokenizer.json"), TokenizerSettings(tokens={"eos_token": "<eos>"}))


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """Return the result of a function, and its CPU milliseconds."""
    began = time.process_time()
    made = work()
    return made, 1000 * (time.process_time() - began)


def walk(fill: Callable[[], object], take: Callable[[int], object], mask: torch.Tensor, ids: list[int]) -> Walk:
    """Feed a document's token ids to a matcher until its mask excludes one, and time each mask. The caller sets
    `compiled`.

    `fill` computes the next mask into `mask`; `take` accepts a token.
    """
    masks = []
    for token in ids:
        masks.append(timed(fill)[1])
        if not int(mask[0, token // 32]) >> token % 32 & 1:
            return Walk(0.0, masks, token)
        take(token)
    return Walk(0.0, masks, None)


def ours(tokenizer: Ours) -> Callable[[Case, list[int]], Walk]:
    """Return a function that compiles and walks a case with llguidance, as the engine does."""
    from llguidance import LLMatcher

    assert tokenizer.eos_token_id is not None
    tables = compiled(vocabulary_of(tokenizer, tokenizer.vocab_size, [tokenizer.eos_token_id]))
    mask = torch.empty(1, -(-tokenizer.vocab_size // 32), dtype=torch.int32)

    def measure(case: Case, ids: list[int]) -> Walk:
        grammar = to_llguidance(Constraint.json(case.schema))
        matcher, milliseconds = timed(lambda: LLMatcher(tables, grammar, log_level=0, limits=limits()))
        fill = functools.partial(matcher.unsafe_compute_mask_ptr, mask.data_ptr(), 4 * mask.numel())
        return walk(fill, matcher.consume_token, mask, ids)._replace(compiled=milliseconds)

    return measure


def theirs(tokenizer: Ours) -> Callable[[Case, list[int]], Walk] | None:
    """Return a function that compiles and walks a case with xgrammar, on one thread and without its cache; None if it
    is not installed.
    """
    try:
        import xgrammar
    except ImportError:
        return None
    pieces = [tokenizer._backend.id_to_token(token) or "" for token in range(tokenizer.vocab_size)]
    assert tokenizer.spelling is not None
    kind = xgrammar.VocabType.BYTE_LEVEL if tokenizer.spelling.byte_level else xgrammar.VocabType.BYTE_FALLBACK
    info = xgrammar.TokenizerInfo(pieces, vocab_type=kind, stop_token_ids=[tokenizer.eos_token_id])
    compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
    mask = torch.empty(1, -(-tokenizer.vocab_size // 32), dtype=torch.int32)

    def measure(case: Case, ids: list[int]) -> Walk:
        schema = json.dumps(case.schema)
        made, milliseconds = timed(lambda: compiler.compile_json_schema(schema, any_whitespace=True))
        matcher = xgrammar.GrammarMatcher(made)
        fill = functools.partial(matcher.fill_next_token_bitmask, mask, 0)
        return walk(fill, matcher.accept_token, mask, ids)._replace(compiled=milliseconds)

    return measure


def measure(chosen: Options) -> dict[str, Any]:
    """Return each case with each vocabulary: the median over the rounds for compiling, masks of all rounds together."""
    torch.set_num_threads(1)
    return {"cases": [row for tokenizer in tokenizers() for row in _rows(tokenizer, chosen.rounds)]}


def tokenizers() -> Iterator[Ours]:
    """Return tokenizers from small to large."""
    yield from map(trained, TRAINED)
    yield demo()


def _rows(tokenizer: Ours, rounds: int) -> Iterator[dict[str, Any]]:
    systems = {"llguidance": ours(tokenizer), "xgrammar": theirs(tokenizer)}
    for name, case in cases().items():
        ids = tokenizer.encode(json.dumps(case.document, ensure_ascii=False), add_special_tokens=False)
        row: dict[str, Any] = {"name": name, "vocabulary": tokenizer.vocab_size, "tokens": len(ids)}
        for system, walks in systems.items():
            if walks is None:
                continue
            walked = [walks(case, ids) for _ in range(rounds)]
            masks = sorted(mask for one in walked for mask in one.masks)
            row[system] = {
                "compile_ms": statistics.median(one.compiled for one in walked),
                "mask_us": 1000 * statistics.mean(masks),
                "mask_p99_us": 1000 * masks[int(0.99 * len(masks))],
                "left_out": walked[0].left_out,
            }
        yield row


def table(result: dict[str, Any]) -> Sheet:
    """Return a row for each vocabulary and schema."""
    rows = []
    for row in result["cases"]:
        cells = [row["name"], f"{row['vocabulary']:,}", str(row["tokens"])]
        for key, form in (("compile_ms", "{:.1f}"), ("mask_us", "{:.0f}"), ("mask_p99_us", "{:.0f}")):
            cells += [form.format(row[s][key]) if s in row else NOT_APPLICABLE for s in ("llguidance", "xgrammar")]
        rows.append(cells)
    measures = ("compile ms", "mask us", "mask p99 us")
    headings = ["schema", "vocabulary", "tokens", *(f"{m}, {s}" for m in measures for s in ("ours", "xgrammar"))]
    return Sheet(
        "llguidance (used by Plimsoll) and xgrammar, milliseconds and microseconds of one core", headings, rows
    )


if __name__ == "__main__":
    sys.exit(question.main(__doc__, measure, table))
