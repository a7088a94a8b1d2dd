"""Probes a model with its own cache: how to call it, and whether steps give the results of a pass without a cache.

As in `probe`, the model has its real shapes, generated weights that need little memory, and cheap products; attention,
convolutions and recurrences are its own. All results are compared with one pass over all tokens without a cache.
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
"""Tokens of the first of two calls."""
_MEASURED = (8, 16)
WINDOWS = ("sliding_window", "sliding_window_size", "attention_window_size", "attention_chunk_size")
"""Names of config fields that limit how far back a token sees."""
WINDOW = 6


@torch.inference_mode()
def probe(kind: type[Any], config: Any) -> Findings:
    """Return how to call a class, and its sizes. Raises UnservedError with the reason if we cannot compute steps."""
    try:
        with quiet():
            return _probed(kind, config)
    except UnservedError:
        raise
    except Exception as error:
        raise UnservedError(f"raises {type(error).__name__} in a step with its own cache: {error}") from error


def _probed(kind: type[Any], config: Any) -> Findings:
    try:
        return _probed_as(kind, config, narrowed(config))
    except UnservedError:
        raise
    except Exception:  # noqa: BLE001 - the class does not accept its config with other windows
        return _probed_as(kind, config, config)


def narrowed(config: Any) -> Any:
    """Return a config with windows and chunks so small that a few tokens exceed them."""
    found = copy.deepcopy(config)
    text = found.get_text_config()
    for name in WINDOWS:
        if isinstance(size := getattr(text, name, None), int) and size > WINDOW:
            setattr(text, name, WINDOW)
    return found


def _probed_as(kind: type[Any], config: Any, asked: Any) -> Findings:
    """Probe with the config `asked`; measure cache sizes with the real one."""
    model = hollow_model(kind, asked, torch.float32)
    tokens = tokens_of(config, ROWS)
    with CheapProducts(ROWS) as products:
        base, hidden, logits = whole_pass(model, tokens, None)
        _check_causal(model, tokens, hidden)
    with CheapProducts(ROWS):
        stepper, takes = _stepper(model, base, tokens, hidden)
        calling = stepper.calling
        if not close(stepper.logits(hidden[1:]), logits[1:]):
            raise UnservedError("computes logits that depend on several rows")
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
    """Return a model with generated weights and the attention that Transformers chooses for the class."""
    model = skeleton(kind, config, dtype, attention=None, experts_implementation="eager")
    generator = torch.Generator().manual_seed(0)
    fill(model, lambda name, wanted: made_up(wanted, generator))
    return model


def _check_causal(model: Any, tokens: Tensor, expected: Tensor) -> None:
    _, hidden, _ = whole_pass(model, tokens, None)
    if not close(hidden, expected):
        raise UnservedError("returns different hidden states for the same tokens in two passes")
    changed = tokens.clone()
    changed[-1] = tokens[0]
    _, hidden, _ = whole_pass(model, changed, None)
    if not close(hidden[:-1], expected[:-1]):
        raise UnservedError("lets tokens attend to later ones")
    if close(hidden[-1], expected[-1]):
        raise UnservedError("returns the same result for any token")


def _stepper(model: Any, base: str, tokens: Tensor, expected: Tensor) -> tuple[Stepper, Takes]:
    """Return the first way to call the model that gives the results of one pass, and how many tokens a call takes."""
    for calling in _ways(model, base):
        stepper = Stepper(model, calling)
        for takes, sizes in (
            (Takes.ANY, (_FIRST, ROWS - _FIRST - 1, 1)),
            (Takes.FIRST, (_FIRST, *[1] * (ROWS - _FIRST))),
            (Takes.ONE, [1] * ROWS),
        ):
            if _gives(stepper, tokens, sizes, expected):
                return stepper, takes
    raise UnservedError("returns other hidden states in several steps than in one")


def _ways(model: Any, base: str) -> Iterator[Calling]:
    part = model.get_submodule(base)
    told = [True, False] if has(part, "position_ids") else [False]
    for cache in (name for name in CACHES if has(part, name) and has(part, "use_cache")):
        yield from (Calling(base, cache, positions) for positions in told)
    yield Calling(base, None, told[0])


def _gives(stepper: Stepper, tokens: Tensor, sizes: Sequence[int], expected: Tensor) -> bool:
    """Return whether steps of these sizes give the hidden states of one pass, while steps of another sequence
    interleave.

    (Some classes keep state in their modules.) A step that raises counts as False.
    """
    others = tokens.flip(0)
    found, cache, other, start = [], None, None, 0
    try:
        for size in sizes:
            hidden, cache = stepper.step(tokens[None, start : start + size], start, cache)
            _, other = stepper.step(others[None, start : start + size], start, other)
            found.append(hidden[0])
            start += size
    except Exception:  # noqa: BLE001 - foreign code, possibly called in an unsupported way
        return False
    whole = torch.cat(found)
    return whole.shape == expected.shape and close(whole, expected)


def _axes(stepper: Stepper, tokens: Tensor) -> Axes | None:
    """Return the batch dimension of each tensor of a cache.

    Returns None if joining the caches of two sequences, or separating them, fails or changes results.
    """
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
    except Exception:  # noqa: BLE001 - Misfit, or an error of the model for a cache that it has not made
        return None
    for i, each in enumerate(alone):
        if not close(hidden[i], each.first) or not close(stacked[i], each.second):
            return None
    return found if close(last[0], alone[1].third) else None


@dataclass(frozen=True, slots=True)
class _Steps:
    """Hidden states of three steps of one sequence, and its cache after the first."""

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
    """Measure cache sizes from a short and a longer cache. Adds space for the copy of the largest tensor when it
    grows.
    """
    stepper = Stepper(hollow_model(kind, config, dtype), calling)
    with CheapProducts(ROWS):
        few, many = (_held(stepper, tokens[:count]) for count in _MEASURED)
    growth = [-(-(size - few.get(path, 0)) // (_MEASURED[1] - _MEASURED[0])) for path, size in many.items()]
    token = max(0, sum(growth)) + max(0, *growth)
    return OwnCache(dtype.itemsize, max(0, sum(few.values()) - sum(growth) * _MEASURED[0]), token)


def _held(stepper: Stepper, tokens: Tensor) -> dict[Path, int]:
    """Compute the tokens one by one. Return the bytes of the cache's allocations, each once, by the path of its first
    tensor.
    """
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
