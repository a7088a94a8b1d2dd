"""Probes Transformers code before weights are read: its attention and masks, and whether tokens of several sequences
can be computed as rows of one step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from plimsoll_runtime.models.spec.attention import AttentionShape
from plimsoll_runtime.models.transformers_code.attention_interface import NAME, Call, connect
from plimsoll_runtime.models.transformers_code.model_classes import UnservedError
from plimsoll_runtime.models.transformers_code.probe_inputs import (
    CheapProducts,
    close,
    made_up,
    quiet,
    tokens_of,
    whole_pass,
)
from plimsoll_runtime.models.transformers_code.skeleton import Halves, fill, skeleton

FAR = 2**20
"""A position beyond any window from the first token. Larger windows count as none."""
_ROWS = (FAR, FAR - 1, FAR - 37)
"""Rows whose visible tokens are checked. A window is equally long for each of them, a chunk is not."""

MaskFunction = Callable[..., Any]
"""Function of batch, head, row and token (all tensors): whether the row sees the token."""


class Masks:
    """The masks that were created, identified by their memory: models pass them on, or slices of them."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[Tensor, MaskFunction]] = {}

    def window(self, mask: Tensor | None) -> int | None:
        """Return the window of a mask that a layer received; None: no window. Raises UnservedError for a mask that was
        not created here.
        """
        if mask is None:
            raise UnservedError("calls attention without a mask")
        if mask.data_ptr() not in self._made:
            raise UnservedError("creates its own masks")
        return window_of(self._made[mask.data_ptr()][1])

    def make(
        self, *, batch_size: int, q_length: int, kv_length: int, mask_function: MaskFunction, **rest: Any
    ) -> Tensor:
        """Create a mask [1, 1, rows, tokens] for Transformers' `AttentionMaskInterface`. Nothing reads its values."""
        mask = torch.zeros(batch_size, 1, q_length, kv_length, dtype=torch.bool)
        self._made[mask.data_ptr()] = (mask, mask_function)
        return mask


@contextmanager
def watched_masks() -> Iterator[Masks]:
    """Let models that call our attention create masks in this context. Otherwise they create none, as our attention
    needs none.
    """
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    masks = Masks()
    known = type(ALL_MASK_ATTENTION_FUNCTIONS)._global_mapping
    known[NAME] = masks.make
    try:
        yield masks
    finally:
        del known[NAME]


def window_of(mask: MaskFunction) -> int | None:
    """Return how many tokens a row sees, including itself; None: all before it. Raises UnservedError for other
    masks.
    """
    tokens = torch.arange(FAR + 2)
    zero = torch.tensor(0)
    found = set()
    for row in _ROWS:
        seen = torch.broadcast_to(mask(zero, zero, torch.tensor(row), tokens), tokens.shape)
        count = int(seen.sum())
        if not 0 < count <= row + 1 or not bool(seen[row + 1 - count : row + 1].all()):
            raise UnservedError("uses a mask that is neither causal nor a sliding window")
        found.add(None if count == row + 1 else count)
    if len(found) > 1:
        raise UnservedError("uses a chunked mask")
    return found.pop()


ROWS = 7
_FIRST_POSITION = 3
_ORDER = (4, 2, 6, 0, 3, 5, 1)
_CHANGED = 5
"""Row with another token in the second step."""
NO_INTERFACE = "does not attend through Transformers' attention interface"


@dataclass(frozen=True, slots=True)
class Findings:
    """Results of probing. `base`: the submodule that returns hidden states; `widest`: elements per row of the model's
    largest intermediate result.
    """

    attention: tuple[AttentionShape, ...]
    vocab_size: int
    hidden_size: int
    base: str
    widest: int


@torch.inference_mode()
def probe(kind: type[Any], config: Any) -> Findings:
    """Return the attention and sizes of a class. Raises UnservedError with the reason if we cannot compute its steps.

    A model of the real shapes computes two steps of a few rows. Its generated weights need little memory, products are
    cheap (`CheapProducts`), and the attention does not mix rows. With rows in another order and one changed token, all
    other rows must give the same results.
    """
    try:
        with quiet():
            return _probed(kind, config)
    except UnservedError:
        raise
    except KeyError as error:
        if error.args != (NAME,):
            raise UnservedError(f"fails in a step without a cache: it needs {error}") from error
        raise UnservedError(NO_INTERFACE) from error
    except Exception as error:
        raise UnservedError(f"raises {type(error).__name__} in a step without a cache: {error}") from error


def _probed(kind: type[Any], config: Any) -> Findings:
    model = skeleton(kind, config, torch.float32, experts_implementation="eager")
    generator = torch.Generator().manual_seed(0)
    fill(model, lambda name, wanted: made_up(wanted, generator))
    tokens = tokens_of(config, ROWS)
    positions = torch.arange(_FIRST_POSITION, _FIRST_POSITION + ROWS)
    recorder, plain = _Recorder(), _Recorder()
    with watched_masks() as masks, CheapProducts(ROWS):
        recorder.masks = masks
        connect(model, recorder)
        base, expected, logits = whole_pass(model, tokens, positions)
    if not recorder.shapes:
        raise UnservedError(NO_INTERFACE)
    connect(model, plain)
    halves = Halves(model, model.get_submodule(base))
    with CheapProducts(ROWS) as products:
        hidden = halves.hidden(tokens, positions)
    with CheapProducts(ROWS):
        _check_equal(hidden, expected, "computes more from tokens than its base model does")
        _check_equal(halves.logits(hidden[1:]), logits[1:], "computes logits that depend on several rows")
        _check_rows(halves, tokens, positions, hidden)
    if [shape.heads for shape in plain.shapes] != 2 * [shape.heads for shape in recorder.shapes]:
        raise UnservedError("calls attention a different number of times without masks than with them")
    return Findings(tuple(recorder.shapes), logits.shape[-1], hidden.shape[-1], base, products.widest)


def _check_rows(halves: Halves, tokens: Tensor, positions: Tensor, expected: Tensor) -> None:
    """Compute the rows in another order, one of them with another token. Raise UnservedError unless exactly the results
    of that row change.
    """
    order = torch.tensor(_ORDER)
    changed = tokens[order]
    changed[_CHANGED] = tokens[order[(_CHANGED + 1) % ROWS]]
    found = halves.hidden(changed, positions[order])
    others = torch.arange(ROWS) != _CHANGED
    _check_equal(
        found[others],
        expected[order][others],
        "mixes rows outside attention (a recurrent layer or a convolution), or counts positions itself",
    )
    if close(found[_CHANGED], expected[order][_CHANGED]):
        raise UnservedError("returns the same result for any token")


def _check_equal(found: Tensor, expected: Tensor, otherwise: str) -> None:
    if found.shape != expected.shape or not close(found, expected):
        raise UnservedError(otherwise)


class _Recorder:
    """Receiver of attention calls that records each layer's shape, and returns results without mixing rows.

    If `masks` is None, the model must not create any.
    """

    def __init__(self) -> None:
        self.masks: Masks | None = None
        self.shapes: list[AttentionShape] = []

    def attend(self, call: Call) -> Tensor:
        """Record a layer's shape. Return a result that depends on each row's own query, key and value."""
        window = None if self.masks is None else self.masks.window(call.mask)
        if self.masks is None and call.mask is not None:
            raise UnservedError("creates its own masks")
        if self.masks is not None and call.window is not None and call.window != window:
            raise UnservedError(f"passes a window of {call.window} tokens to attention but masks one of {window}")
        self.shapes.append(call.shape(window))
        group = len(call.query) // len(call.key)
        key, value = (t.repeat_interleave(group, 0) for t in (call.key, call.value))
        width = value.shape[-1]
        mixed = value + 0.5 * _as_wide(call.query, width) + 0.25 * _as_wide(key, width)
        return mixed.transpose(0, 1).contiguous()


def _as_wide(heads: Tensor, width: int) -> Tensor:
    return heads.index_select(-1, torch.arange(width) % heads.shape[-1])
