"""Asks a model with a cache of its own how it is called, and whether that gives what it computes without one.

As in the other probe (`probe`) the model has its real shapes, made-up weights of hardly any memory, and
products that are hardly any work; attention, convolutions and recurrences are its own. Everything is compared with one
pass over all tokens that keeps nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from plimsoll_runtime.models.spec.recurrent import OwnCache
from plimsoll_runtime.models.transformers_code.cache_calls import CACHES, Calling, Findings, Stepper, Takes, has
from plimsoll_runtime.models.transformers_code.cache_tensors import (
    Axes,
    Path,
    axes_of,
    joined,
    taken,
    tensors_of,
    with_tensors,
)
from plimsoll_runtime.models.transformers_code.model_classes import UnservedError
from plimsoll_runtime.models.transformers_code.probe_inputs import (
    CheapProducts,
    close,
    made_up,
    quiet,
    tokens_of,
    whole_pass,
)
from plimsoll_runtime.models.transformers_code.skeleton import fill, skeleton

ROWS = 19
_FIRST = 8
"""Tokens of the first call, where there are two."""
_MEASURED = (8, 16)
WINDOWS = ("sliding_window", "sliding_window_size", "attention_window_size", "attention_chunk_size")
"""What configs call how far back a token sees."""
WINDOW = 6


@torch.inference_mode()
def probe(kind: type[Any], config: Any) -> Findings:
    """Raises UnservedError where its steps cannot be ours, with what is in the way."""
    try:
        with quiet():
            return _probed(kind, config)
    except UnservedError:
        raise
    except Exception as error:
        raise UnservedError(f"fails with {type(error).__name__} in a step with its own cache: {error}") from error


def _probed(kind: type[Any], config: Any) -> Findings:
    try:
        return _probed_as(kind, config, narrowed(config))
    except UnservedError:
        raise
    except Exception:  # noqa: BLE001 - of a class that does not take its config with other windows
        return _probed_as(kind, config, config)


def narrowed(config: Any) -> Any:
    """A config whose windows and chunks are so small that a few tokens go beyond them."""
    found = copy.deepcopy(config)
    text = found.get_text_config()
    for name in WINDOWS:
        if isinstance(size := getattr(text, name, None), int) and size > WINDOW:
            setattr(text, name, WINDOW)
    return found


def _probed_as(kind: type[Any], config: Any, asked: Any) -> Findings:
    """Asks with the config `asked`; what caches take is found with the real one."""
    model = hollow_model(kind, asked, torch.float32)
    tokens = tokens_of(config, ROWS)
    with CheapProducts(ROWS) as products:
        base, hidden, logits = whole_pass(model, tokens, None)
        _check_causal(model, tokens, hidden)
    with CheapProducts(ROWS):
        stepper, takes = _stepper(model, base, tokens, hidden)
        calling = stepper.calling
        if not close(stepper.logits(hidden[1:]), logits[1:]):
            raise UnservedError("does more with hidden states than can be done row by row")
        axes = _axes(stepper, tokens)
    kept = tuple(_kept(kind, config, calling, dtype, tokens) for dtype in (torch.bfloat16, torch.float32))
    heads = getattr(config.get_text_config(), "num_attention_heads", None)
    return Findings(
        calling,
        takes,
        None if axes is None else tuple(axes.items()),
        vocab_size=logits.shape[-1],
        hidden_size=hidden.shape[-1],
        widest=products.widest,
        heads=heads if isinstance(heads, int) and heads > 0 else 1,
        kept=kept,
    )


def hollow_model(kind: type[Any], config: Any, dtype: torch.dtype) -> Any:
    """With attention as Transformers chooses it for the class."""
    model = skeleton(kind, config, dtype, attention=None, experts_implementation="eager")
    generator = torch.Generator().manual_seed(0)
    fill(model, lambda name, wanted: made_up(wanted, generator))
    return model


def _check_causal(model: Any, tokens: Tensor, expected: Tensor) -> None:
    _, hidden, _ = whole_pass(model, tokens, None)
    if not close(hidden, expected):
        raise UnservedError("gives other numbers each time")
    changed = tokens.clone()
    changed[-1] = tokens[0]
    _, hidden, _ = whole_pass(model, changed, None)
    if not close(hidden[:-1], expected[:-1]):
        raise UnservedError("lets tokens see later ones")
    if close(hidden[-1], expected[-1]):
        raise UnservedError("gives the same for any token")


def _stepper(model: Any, base: str, tokens: Tensor, expected: Tensor) -> tuple[Stepper, Takes]:
    """How it is to be called, and with how many tokens: the first way that gives what one pass gives."""
    for calling in _ways(model, base):
        stepper = Stepper(model, calling)
        for takes, sizes in (
            (Takes.ANY, (_FIRST, ROWS - _FIRST - 1, 1)),
            (Takes.FIRST, (_FIRST, *[1] * (ROWS - _FIRST))),
            (Takes.ONE, [1] * ROWS),
        ):
            if _gives(stepper, tokens, sizes, expected):
                return stepper, takes
    raise UnservedError("gives other hidden states in several steps than in one")


def _ways(model: Any, base: str) -> Iterator[Calling]:
    part = model.get_submodule(base)
    told = [True, False] if has(part, "position_ids") else [False]
    for cache in (name for name in CACHES if has(part, name) and has(part, "use_cache")):
        yield from (Calling(base, cache, positions) for positions in told)
    yield Calling(base, None, told[0])


def _gives(stepper: Stepper, tokens: Tensor, sizes: Sequence[int], expected: Tensor) -> bool:
    """Whether steps of these sizes give the hidden states of one pass, in turns with another sequence's.

    (There are classes that keep states in their modules.) A step that fails gives none.
    """
    others = tokens.flip(0)
    found, cache, other, start = [], None, None, 0
    try:
        for size in sizes:
            hidden, cache = stepper.step(tokens[None, start : start + size], start, cache)
            _, other = stepper.step(others[None, start : start + size], start, other)
            found.append(hidden[0])
            start += size
    except Exception:  # noqa: BLE001 - of anybody's code, in a way that it may not be meant to be called
        return False
    whole = torch.cat(found)
    return whole.shape == expected.shape and close(whole, expected)


def _axes(stepper: Stepper, tokens: Tensor) -> Axes | None:
    """How rows lie in caches, if rows that are stacked, and unstacked, give what each gives alone; else None."""
    one, other = tokens[: _FIRST + 2], tokens.flip(0)[: _FIRST + 2]
    both = torch.stack([one, other])
    try:
        alone = [_steps(stepper, row[None]) for row in (one, other)]
        hidden, cache = stepper.step(both[:, :_FIRST], 0, None)
        found = axes_of(alone[0].cache, cache)
        caches = [_copy(each.cache) for each in alone]
        pair = joined(caches, found)
        stacked, pair = stepper.step(both[:, _FIRST : _FIRST + 1], _FIRST, pair)
        last, _ = stepper.step(other[None, _FIRST + 1 :], _FIRST + 1, taken(pair, [1], 2, found))
    except Exception:  # noqa: BLE001 - Misfit, or whatever a model says to a cache that it has not made
        return None
    for i, each in enumerate(alone):
        if not close(hidden[i], each.first) or not close(stacked[i], each.second):
            return None
    return found if close(last[0], alone[1].third) else None


@dataclass(frozen=True, slots=True)
class _Steps:
    """Hidden states of three steps of one row, and its cache after the first."""

    first: Tensor
    second: Tensor
    third: Tensor
    cache: Any


def _steps(stepper: Stepper, tokens: Tensor) -> _Steps:
    first, cache = stepper.step(tokens[:, :_FIRST], 0, None)
    kept = _copy(cache)
    second, cache = stepper.step(tokens[:, _FIRST : _FIRST + 1], _FIRST, cache)
    third, _ = stepper.step(tokens[:, _FIRST + 1 :], _FIRST + 1, cache)
    return _Steps(first[0], second[0], third[0], kept)


def _copy(cache: Any) -> Any:
    return with_tensors(cache, lambda _, tensor: tensor.clone())


def _kept(kind: type[Any], config: Any, calling: Calling, dtype: torch.dtype, tokens: Tensor) -> OwnCache:
    """By caches of a few tokens and of some more; with room for the copy that the largest tensor makes as it grows."""
    stepper = Stepper(hollow_model(kind, config, dtype), calling)
    with CheapProducts(ROWS):
        few, many = (_held(stepper, tokens[:count]) for count in _MEASURED)
    growth = [-(-(size - few.get(path, 0)) // (_MEASURED[1] - _MEASURED[0])) for path, size in many.items()]
    token = max(0, sum(growth)) + max(0, *growth)
    return OwnCache(dtype.itemsize, max(0, sum(few.values()) - sum(growth) * _MEASURED[0]), token)


def _held(stepper: Stepper, tokens: Tensor) -> dict[Path, int]:
    """Bytes that a cache of these tokens holds, whole allocations, each once, by where the first tensor of it lies."""
    cache = None
    for start in range(len(tokens)):
        _, cache = stepper.step(tokens[None, start : start + 1], start, cache)
    seen: set[int] = set()
    held = {}
    for path, tensor in tensors_of(cache).items():
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in seen:
            seen.add(storage.data_ptr())
            held[path] = storage.nbytes()
    return held
