"""Norms over the last dimension, against their definitions."""

from __future__ import annotations

import pytest
import torch

from plimsoll_runtime.models.ops.norm import Normaliser
from plimsoll_runtime.models.spec.norm import NormKind

EPS = 1e-3


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_the_definition(kind: NormKind, weighted: bool, biased: bool) -> None:
    x, scale, bias = torch.randn(5, 7, dtype=torch.float64), torch.randn(7), torch.randn(7)
    centred = x if kind == "rms" else x - x.mean(-1, keepdim=True)
    expected = centred / (centred.square().mean(-1, keepdim=True) + EPS).sqrt()
    expected = expected * (scale if weighted else 1.0) + (bias if biased else 0.0)
    normaliser = Normaliser(kind, EPS, scale if weighted else None, bias if biased else None)
    torch.testing.assert_close(normaliser(x.float()).double(), expected, rtol=1e-5, atol=1e-5)
    normed, total = normaliser.of_sum(x.float(), x.float())
    torch.testing.assert_close(total.double(), 2 * x, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(normed, normaliser(total))


@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_heads_may_have_scales_of_their_own(kind: NormKind) -> None:
    x, scale = torch.randn(5, 3, 7), torch.randn(3, 7)
    each = Normaliser(kind, EPS, scale)(x)
    for head in range(3):
        torch.testing.assert_close(each[:, head], Normaliser(kind, EPS, scale[head])(x[:, head]))
