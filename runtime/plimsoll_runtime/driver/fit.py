"""What a model needs of memory, from the headers of its files: no number of its weights is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from plimsoll_runtime.driver.graph_memory import graph_bytes
from plimsoll_runtime.driver.model import backends_of, settle
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.execution.device.select import NAMES, choose
from plimsoll_runtime.execution.kv.layout import KvLayout, kv_layout
from plimsoll_runtime.execution.memory.workspace import by_outline, largest_step, on_a_cpu
from plimsoll_runtime.models.compose.pooling import served_as
from plimsoll_runtime.models.load import checked_source, imagined_decoder
from plimsoll_runtime.models.program import Facts, Program
from plimsoll_runtime.models.registry.tasks import task_of
from plimsoll_runtime.weights.files import ModelFiles
from plimsoll_runtime.weights.gguf.blocks import kind_name, kind_of, stored_bytes
from plimsoll_runtime.weights.gguf.metadata import read_metadata
from plimsoll_runtime.weights.safetensors import FLOATS, OTHERS, QUANTISED, SafetensorsFiles


@dataclass(frozen=True, slots=True)
class Fit:
    """What a model needs, in bytes.

    `stored` in its files, by what tensors are stored as. `weights` as an engine keeps them, `packed` for our CPU
    kernels or plain. `step`: the largest, of so many `tokens`, with all that recurrent layers keep of sequences and so
    many `snapshots` of that. `graphs`: what graphs of steps may take, 0 on a CPU.
    """

    facts: Facts
    layout: KvLayout
    stored: Mapping[str, int]
    weights: int
    packed: bool
    step: int
    tokens: int
    snapshots: int
    graphs: int = 0

    @property
    def beside_cache(self) -> int:
        """What an engine takes beside its KV cache."""
        return self.weights + self.step + self.graphs


def fit(files: ModelFiles, config: EngineConfig) -> Fit:
    """Of a model as the engine would compute it here, in the dtype that the config names.

    Raises ModelError where the files are not what they say, or not what the model needs; DeviceLostError where the
    config wants a GPU and there is none.
    """
    device = choose(config.device)
    dtype = NAMES[config.dtype]
    settled = settle(config, files, served_as(files.config, task_of(files.config)))
    files, outline = settled.files, settled.outline
    if isinstance(outline, Program):
        checked_source(files, outline)
    facts = outline.facts
    step = largest_step(config, facts, facts.max_positions)
    packed = backends_of(config, outline, device, dtype)[0].fused
    if packed:
        decoder, _ = imagined_decoder(outline, dtype)
        weights, largest = decoder.weight_bytes, on_a_cpu(decoder, step)
    else:
        weights, largest = outline.weight_bytes(dtype), by_outline(outline, dtype, step)
    layout = kv_layout(facts.attention, facts.max_positions, config.block_size, dtype.itemsize)
    graphs = graph_bytes(config, outline, device)
    return Fit(facts, layout, stored_sizes(files), weights, packed, largest, step.rows, step.snapshots, graphs)


def stored_sizes(files: ModelFiles) -> Mapping[str, int]:
    """Bytes that the tensors of the files take, by what they are stored as, the most first."""
    sizes: Counter[str] = Counter()
    if files.format == "gguf":
        for path in files.weights:
            for tensor in read_metadata(path).tensors.values():
                kind = kind_of(tensor.kind)
                sizes[kind_name(tensor.kind)] += 0 if kind is None else stored_bytes(kind, tensor.shape)
    else:
        source = SafetensorsFiles(files.weights, FLOATS | OTHERS | QUANTISED)
        for name, dtype in source.dtypes.items():
            sizes[str(dtype).removeprefix("torch.")] += prod(source.shapes[name]) * dtype.itemsize
    return dict(sizes.most_common())
