"""Steps of a model on a fake GPU: torch's fake tensors only have a device and a shape.

Nothing is computed and no kernel is launched. This shows that all tensors of a step are on the device, and that nothing
in a graph reads values on the host: such a copy would end a capture, and make the host wait without graphs.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from kernel_support.rows import state_of
from numpy.typing import NDArray
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

from plimsoll_runtime.execution.attention.backends.triton import TritonBackend
from plimsoll_runtime.execution.attention.base import AttentionBatch, BlockTables, NoAttention, OnDevice
from plimsoll_runtime.execution.graphs.capture import Captured
from plimsoll_runtime.execution.graphs.decode import DecodeGraphs
from plimsoll_runtime.execution.graphs.piecewise import PiecewiseDecoder
from plimsoll_runtime.execution.graphs.sampling import SamplingGraphs
from plimsoll_runtime.execution.inputs import device_state
from plimsoll_runtime.execution.inputs.batch_state import SlotStates, StepInputs
from plimsoll_runtime.execution.kv.cache import KvCache
from plimsoll_runtime.execution.kv.states import states_of
from plimsoll_runtime.execution.parts import StepParts
from plimsoll_runtime.execution.sampling.sampler import Sampler
from plimsoll_runtime.models.compose.decoder import program_of
from plimsoll_runtime.models.decoder import TorchDecoder
from plimsoll_runtime.models.layers.collectives import Collectives
from plimsoll_runtime.models.ops.weight import Weight
from plimsoll_runtime.models.program import Program
from plimsoll_runtime.models.registry.registry import describe
from plimsoll_runtime.models.weight_reader import WeightReader
from plimsoll_runtime.utils.progress import silent
from plimsoll_runtime.weights.image_arena import ShapesOnly
from plimsoll_runtime.weights.sources.resolve import resolve

GPU = torch.device("cuda", 0)
DTYPE = torch.bfloat16
SEQUENCES, LONGEST, BLOCK, BLOCKS = 4, 200, 16, 64
ASK_THE_HOST = ("aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::lift_fresh")
"""Ops whose result or shape is needed on the host, and ops that make tensors of the host's numbers."""


class Watched(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the ops that need the host."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        tensors = [each for each in _pytree.tree_leaves((args, kwargs, result)) if isinstance(each, Tensor)]
        name = func._schema.name
        if name in ASK_THE_HOST or (name != "prim::device" and any(each.device.type == "cpu" for each in tensors)):
            self.found.append(name)
        return result


class WatchedCapture:
    """Captures nothing; watches the second run of the work, which a real capture records."""

    used = 0

    def __init__(self) -> None:
        self.found: list[str] = []

    def __call__(self, work: Callable[[], Tensor]) -> Captured:
        work()
        with Watched() as watched:
            out = work()
        self.found += watched.found
        return Captured(out, lambda: None)


class Shapes(WeightReader):
    """A weight reader that returns shapes only."""

    def __init__(self, program: Program) -> None:
        super().__init__(program, ShapesOnly(program.stored_shapes()), DTYPE, GPU, silent)

    def read(self, weight: Weight, *, keep: bool = False) -> Tensor:
        return torch.empty(weight.shape, dtype=weight.dtype(DTYPE), device=GPU)


def of_the_host(program: Program, collectives: Collectives | None = None) -> list[str]:
    """Return the ops that need the host within graphs of decodes, sampling and pieces, and in chunks without graphs.

    `collectives`: if the program is that of a rank. Raises torch's error if the tensors of an op are on different
    devices.
    """
    with fake_gpu():
        decoder = TorchDecoder(program, Shapes(program), collectives)
        facts, capture = program.facts, WatchedCapture()
        cache = KvCache(facts.attention, BLOCKS, BLOCK, DTYPE, GPU)
        state = state_of(cache, SEQUENCES, LONGEST)
        states = states_of(program, SEQUENCES, DTYPE, GPU)
        backend = TritonBackend(cache, {}) if facts.attention else NoAttention(cache)
        limits = {"max_sequences": SEQUENCES, "max_model_len": LONGEST}
        decodes = DecodeGraphs(StepParts(decoder, cache, states), backend, state, capture, **limits)
        choices = SamplingGraphs(decoder, Sampler(facts.vocab_size, ()), state, capture)
        kinds: list[Any] = [decodes, choices]
        if not states.recurrent:
            kinds.append(PiecewiseDecoder(decoder, backend, cache, capture, max_rows=40))
        for kind in kinds:
            kind.wanted()[-1].add()
        with Watched() as watched:
            for lengths in ([1, 1, 1], [5, 1, 7]):
                _launched(decoder, backend, cache, states, lengths)
        found: list[str] = [*capture.found, *watched.found]
    return found


def asked_of_the_host(folder: Path) -> list[str]:
    """Return the result of `of_the_host` for the model in a folder."""
    return of_the_host(program_of(describe(resolve(str(folder)).config)))


def _launched(decoder: TorchDecoder, backend: Any, cache: KvCache, states: SlotStates, lengths: Sequence[int]) -> None:
    """Run a step without graphs, of sequences with these numbers of rows."""
    rows, count = sum(lengths), len(lengths)
    batch: tuple[AttentionBatch, ...] = ()
    for _ in cache.groups:
        blocks = torch.empty(99, dtype=torch.int32, device=GPU)
        there = OnDevice(blocks, _ints(count + 1), _ints(count), _ints(count))
        tables = BlockTables(array("i", [1] * 99), [0] * count, [2] * count, there)
        batch = (AttentionBatch(lengths, [20] * count, tables, _ints(rows), batch, 20), *batch)
    inputs = StepInputs(_ints(rows), _ints(rows), batch[0], range(count))
    hidden = states.compute(decoder, inputs, backend.begin(batch[0]))
    assert decoder.logits(hidden).shape == (rows, decoder.program.facts.vocab_size)


def _ints(*shape: int) -> Tensor:
    return torch.empty(*shape, dtype=torch.int64, device=GPU)


def _to_device(values: NDArray[Any], device: torch.device) -> Tensor:
    return torch.empty(values.shape, dtype=getattr(torch, str(values.dtype)), device=device)


@contextmanager
def fake_gpu() -> Iterator[None]:
    """Within this context, tensors on the GPU have no values, and kernels are not launched."""
    ours = [module for name, module in sys.modules.items() if name.startswith("plimsoll_")]
    with ExitStack() as stack:
        for name, fake in (("multiprocessors", lambda device: 132), ("to_device", _to_device)):
            for module in ours:
                if callable(getattr(module, name, None)):
                    stack.enter_context(patch.object(module, name, fake))
        for launch in (JITFunction, InterpretedFunction):
            stack.enter_context(patch.object(launch, "run", lambda *args, **options: None))
        stack.enter_context(patch.object(device_state, "UploadBuffer", lambda *args: None))
        for holder in (Tensor, torch.UntypedStorage):
            stack.enter_context(patch.object(holder, "data_ptr", lambda held: 0))
        stack.enter_context(FakeTensorMode())
        stack.enter_context(torch.no_grad())
        yield
