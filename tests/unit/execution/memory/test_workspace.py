"""The predicted memory of the largest step equals the measured one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from model_support.tiny import make_model, save_model
from torch import Tensor

from plimsoll_kernels.cpu.library import kernels
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.execution.attention.backends.cpu import CpuBackend
from plimsoll_runtime.execution.attention.backends.reference import ReferenceBackend
from plimsoll_runtime.execution.forward import ForwardPass
from plimsoll_runtime.execution.inputs.batch_state import StepInputs
from plimsoll_runtime.execution.kv.cache import KvCache
from plimsoll_runtime.execution.kv.states import StateCache
from plimsoll_runtime.execution.memory import workspace as module
from plimsoll_runtime.execution.memory.workspace import (
    LargestStep,
    by_outline,
    largest_step,
    on_a_cpu,
    on_an_accelerator,
)
from plimsoll_runtime.models.compose.decoder import program_of
from plimsoll_runtime.models.decoder import Decoder
from plimsoll_runtime.models.load import load_decoder
from plimsoll_runtime.models.registry.registry import describe
from plimsoll_runtime.weights.sources.resolve import resolve

ROWS, SEQUENCES = 2048, 200
SIZES = {"hidden_size": 768, "intermediate_size": 1536, "num_hidden_layers": 2, "vocab_size": 30000}


RECURRENT: Mapping[str, Any] = {"num_heads": 8, "head_dim": 12, "n_groups": 2, "state_size": 10}
LATENT = {
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "kv_lora_rank": 256,
    "q_lora_rank": 128,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 32,
    "v_head_dim": 64,
}

STREAMS = {"num_kv_shared_layers": 0, "vocab_size_per_layer_input": 1000, "intermediate_size": [1536, 1536]}
OWN: Mapping[str, Mapping[str, Any]] = {"YoutuConfig": LATENT, "Gemma3nTextConfig": STREAMS}


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "backend", "least", "most"),
    [
        ("LlamaConfig", "cpu", 0.93, 1.1),
        ("LlamaConfig", "torch", 0.8, 2.0),
        ("YoutuConfig", "torch", 0.8, 2.0),
        ("Gemma3nTextConfig", "torch", 0.8, 2.0),
    ],
)
def test_as_measured(kind: str, backend: str, least: float, most: float, tmp_path: Path) -> None:
    """Resident activations and logits of one step: 60 MB and more."""
    if backend == "cpu" and kernels(torch.float32) is None:
        pytest.skip("this processor has no kernels for float32, or they were not built")
    save_model(make_model(kind, {**SIZES, **OWN.get(kind, {})}), tmp_path)
    command = [sys.executable, "-m", "model_support.step_memory", str(tmp_path), backend, str(ROWS), str(SEQUENCES)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert least < float(done.stdout) < most


def test_logits_of_prompts_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PROMPT_LOGITS", 1000)
    assert LargestStep(rows=2048, sequences=4, longest=10).logits_rows(vocab_size=10) == 100
    assert LargestStep(rows=50, sequences=4, longest=10).logits_rows(vocab_size=10) == 50
    assert LargestStep(rows=50, sequences=4, longest=10).logits_rows(vocab_size=5000) == 4


def test_the_largest_step_has_all_rows_and_all_sequences() -> None:
    assert LargestStep(rows=2048, sequences=4, longest=4096).prompts == [2045, 1, 1, 1]
    assert LargestStep(rows=64, sequences=8, longest=16).prompts == [16, 16, 16, 12, 1, 1, 1, 1]
    assert LargestStep(rows=3, sequences=8, longest=16).prompts == [1, 1, 1]
    facts = program_of(describe(make_model("LlamaConfig", {}).config.to_dict())).facts
    for longest, sequences, tokens in product((1, 2, 16, 100), (1, 2, 3, 40), (1, 2, 17, 50, 3000)):
        config = EngineConfig(model="m", max_batch_tokens=tokens, max_sequences=sequences)
        step = largest_step(config, facts, longest)
        assert sum(step.prompts) == step.rows == min(tokens, sequences * longest)
        assert len(step.prompts) == min(sequences, tokens)
        assert all(1 <= length <= longest for length in step.prompts)


def loaded(kind: str, options: Mapping[str, Any], folder: Path, *, fused: bool = False) -> Decoder:
    save_model(make_model(kind, options), folder)
    files = resolve(str(folder))
    program = program_of(describe(files.config))
    return load_decoder(files, program, torch.float32, device=torch.device("cpu"), fused=fused)


@pytest.mark.parametrize("kind", ["LlamaConfig", "Mamba2Config"])
def test_the_step_that_is_run_is_the_largest(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts are shorter than a step, so a real step has several. A CPU with invented byte counts replaces the GPU."""
    decoder = loaded(kind, RECURRENT if kind == "Mamba2Config" else {}, tmp_path)
    seen: list[tuple[Sequence[int], list[int], list[int], int]] = []
    plain = ForwardPass.run

    def run(self: ForwardPass, inputs: StepInputs) -> Tensor:
        batch, states = inputs.batch, self.parts.states
        assert list(batch.context_lens) == list(batch.query_lens)
        rows = states.tensors[0].shape[0] if isinstance(states, StateCache) else 0
        seen.append((list(batch.query_lens), inputs.positions.tolist(), list(inputs.slots), rows))
        return plain(self, inputs)

    def peak(work: Callable[[], None]) -> int:
        work()
        return 10**9

    monkeypatch.setattr(ForwardPass, "run", run)
    monkeypatch.setattr(module, "peak_of", peak)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cpu"))
    facts, lengths = decoder.outline.facts, [8, 8, 2, 1, 1]
    step = largest_step(EngineConfig(model="m", max_batch_tokens=20, max_sequences=5), facts, 8)
    nbytes, able = on_an_accelerator(decoder, [ReferenceBackend], 16, step)
    [(queries, positions, slots, rows)] = seen
    assert queries == lengths
    assert positions == [position for length in lengths for position in range(length)]
    assert slots == list(range(5))
    assert able == [ReferenceBackend]
    kept = (5 + 1 + step.snapshots) * facts.state_bytes(4)
    assert nbytes == 10**9 + module._choosing(decoder.outline, step) + kept, (
        "what a step makes of states is in its peak"
    )
    assert rows == (6 if facts.states else 0)


@pytest.mark.parametrize("fused", [True, False])
def test_a_second_row_of_states_is_taken_where_ops_do_not_write_in_place(fused: bool, tmp_path: Path) -> None:
    if fused and kernels(torch.float32) is None:
        pytest.skip("this processor has no kernels for float32, or they were not built")
    decoder = loaded("Mamba2Config", RECURRENT, tmp_path, fused=fused)
    facts, made = decoder.outline.facts, list[int]()

    class Watched(StateCache):
        def begin(self, *given: Any) -> Any:
            begun = super().begin(*given)
            plain = begun.commit

            def commit() -> None:
                made.append(sum(after.to(self.tensors[i].dtype).nbytes for i, after in begun._after.items()))
                plain()

            begun.commit = commit  # type: ignore[method-assign]
            return begun

    step = LargestStep(rows=12, sequences=3, longest=8)
    states = Watched(facts.states, 3, torch.float32, torch.device("cpu"))
    cache = KvCache(facts.attention, 2, 16, torch.float32, torch.device("cpu"))
    module._run(decoder, [CpuBackend if fused else ReferenceBackend], cache, step, states)
    assert made == [0 if fused else 3 * facts.state_bytes(4)]
    assert any(tensor[:3].any() for tensor in states.tensors), "both have written them"
    more = LargestStep(rows=12, sequences=4, longest=8)
    assert more.head_rows(facts) == step.head_rows(facts)
    choosing = module._choosing(decoder.outline, more) - module._choosing(decoder.outline, step)
    by_decoder = on_a_cpu(decoder, more) - on_a_cpu(decoder, step) - choosing
    assert by_decoder == (1 if fused else 2) * facts.state_bytes(4)
    by_torch = [by_outline(decoder.outline, torch.float32, each) for each in (step, more)]
    assert by_torch[1] - by_torch[0] - choosing == 2 * facts.state_bytes(4)
