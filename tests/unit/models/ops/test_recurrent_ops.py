"""Recurrent ops: their results, which chunks and other sequences do not change."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import softplus

from plimsoll_runtime.execution.kv.states import StateCache
from plimsoll_runtime.models.ops.causal_conv import Convolve
from plimsoll_runtime.models.ops.delta_rule import DeltaRule
from plimsoll_runtime.models.ops.gated_recurrence import GatedRecurrence
from plimsoll_runtime.models.ops.mamba2_scan import DualScan
from plimsoll_runtime.models.ops.mamba_scan import SelectiveScan
from plimsoll_runtime.models.ops.op import Op, Run, Stateful, Step
from plimsoll_runtime.models.ops.weight import Weight
from plimsoll_runtime.models.spec.recurrent import DeltaShape, DualShape

CPU = torch.device("cpu")
IN, OUT = ("in",), ("out",)
Tensors = Mapping[str, Tensor]


@dataclass
class RandomWeights:
    """Random tensors of an op, by name."""

    found: dict[str, Tensor]
    device: torch.device = CPU
    dtype: torch.dtype = torch.float32

    def read(self, weight: Weight, *, keep: bool = False) -> Tensor:
        generator = torch.Generator().manual_seed(len(self.found))
        return self.found.setdefault(weight.name, torch.randn(weight.shape, generator=generator) * 0.5)

    def joined(self, weights: Sequence[Weight]) -> Tensor:
        raise NotImplementedError


def vector(name: str, size: int) -> Weight:
    return Weight(name, (size,))


def convolved(w: Tensors, x: Tensor) -> Tensor:
    padded = torch.cat([torch.zeros(2, x.shape[1], dtype=x.dtype), x])
    rows = [(padded[t : t + 3] * w["w"].double().t()).sum(0) for t in range(len(x))]
    return torch.nn.functional.silu(torch.stack(rows) + w["b"])


def selected(w: Tensors, x: Tensor, times: Tensor, inputs: Tensor, outputs: Tensor) -> Tensor:
    state, rows = torch.zeros(6, 4, dtype=torch.float64), []
    for t in range(len(x)):
        step = softplus(times[t] + w["bias"])[:, None]
        state = (step * -w["decay"].double().exp()).exp() * state + step * x[t][:, None] * inputs[t]
        rows.append(state @ outputs[t] + w["skip"] * x[t])
    return torch.stack(rows)


DUAL = DualShape(heads=4, head_dim=3, groups=2, state=5)


def dual(w: Tensors, mixed: Tensor, times: Tensor) -> Tensor:
    state, rows = torch.zeros(4, 3, 5, dtype=torch.float64), []
    for t in range(len(mixed)):
        x, b, c = torch.split(mixed[t], [12, 10, 10])
        x, b, c = x.view(4, 3), b.view(2, 5)[[0, 0, 1, 1]], c.view(2, 5)[[0, 0, 1, 1]]
        step = softplus(times[t] + w["bias"]).clamp(0.2, 0.9)
        fade = (step * -w["decay"].double().exp()).exp()
        state = fade[:, None, None] * state + (step[:, None] * x)[:, :, None] * b[:, None]
        rows.append(((state @ c[:, :, None]).squeeze(2) + w["skip"][:, None] * x).flatten())
    return torch.stack(rows)


DELTA = DeltaShape(key_heads=2, value_heads=4, key_dim=3, value_dim=5)


def told(w: Tensors, mixed: Tensor, writes: Tensor, times: Tensor) -> Tensor:
    state, rows = torch.zeros(4, 3, 5, dtype=torch.float64), []
    for t in range(len(mixed)):
        q, k, v = torch.split(mixed[t], [6, 6, 20])
        q, k = (each / (each.square().sum(-1, keepdim=True) + 1e-6).sqrt() for each in (q.view(2, 3), k.view(2, 3)))
        q, k, v = q[[0, 0, 1, 1]] / 3**0.5, k[[0, 0, 1, 1]], v.view(4, 5)
        fade = (-w["decay"].double().exp() * softplus(times[t] + w["bias"])).exp()
        state = fade[:, None, None] * state
        missing = (v - (k[:, :, None] * state).sum(1)) * writes[t].sigmoid()[:, None]
        state = state + k[:, :, None] * missing[:, None]
        rows.append((q[:, :, None] * state).sum(1).flatten())
    return torch.stack(rows)


def griffin(w: Tensors, x: Tensor) -> Tensor:
    state, rows = torch.zeros(6, dtype=torch.float64), []
    for t in range(len(x)):
        blocks = x[t].view(2, 1, 3)
        open_r, open_i = (
            ((blocks @ w[n].double()).flatten() + w[f"{n}-bias"]).sigmoid() for n in ("recurrent", "inputs")
        )
        fade = (-8 * open_r * softplus(w["decay"].double())).exp()
        state = fade * state + x[t] * open_i * ((1 - fade**2).sqrt() if t else 1)
        rows.append(state)
    return torch.stack(rows)


OPS: Mapping[str, tuple[Op, Sequence[int], Callable[..., Tensor]]] = {
    "convolve": (Convolve(0, Weight("w", (6, 3)), vector("b", 6), "silu", IN, OUT), (6,), convolved),
    "selective-scan": (
        SelectiveScan(0, Weight("decay", (6, 4)), vector("skip", 6), vector("bias", 6), IN, OUT),
        (6, 6, 4, 4),
        selected,
    ),
    "dual-scan": (
        DualScan(0, DUAL, vector("decay", 4), vector("skip", 4), vector("bias", 4), IN, OUT, (0.2, 0.9)),
        (32, 4),
        dual,
    ),
    "delta-rule": (DeltaRule(0, DELTA, vector("decay", 4), vector("bias", 4), IN, OUT), (32, 4, 4), told),
    "gated-recurrence": (
        GatedRecurrence(
            0,
            vector("decay", 6),
            Weight("recurrent", (2, 3, 3)),
            vector("recurrent-bias", 6),
            Weight("inputs", (2, 3, 3)),
            vector("inputs-bias", 6),
            IN,
            OUT,
        ),
        (6,),
        griffin,
    ),
}


class Sequences:
    """An op's sequences, which keep their states between steps."""

    def __init__(self, op: Op, values: Sequence[Sequence[Tensor]]) -> None:
        assert isinstance(op, Stateful)
        self.weights = RandomWeights({})
        self._run: Run = op.compiled(self.weights)
        self._values = values
        self._cache = StateCache([op.keeps], len(values), torch.float32, CPU)
        self._cache.tensors[0].fill_(torch.nan)
        self.at = [0] * len(values)
        self.results: list[list[Tensor]] = [[] for _ in values]

    def step(self, lengths: Mapping[int, int]) -> None:
        """Compute these numbers of further rows."""
        parts = [[v[self.at[s] : self.at[s] + n] for v in self._values[s]] for s, n in lengths.items()]
        positions = torch.cat([torch.arange(self.at[s], self.at[s] + n) for s, n in lengths.items()])
        states = self._cache.begin(list(lengths), list(lengths.values()), positions)
        step = Step(positions, positions, {}, None, states)  # type: ignore[arg-type]
        result = self._run(step, *(torch.cat(list(each)) for each in zip(*parts, strict=True)))
        assert isinstance(result, Tensor)
        states.commit()
        for s, part in zip(lengths, torch.split(result, list(lengths.values())), strict=True):
            self.results[s].append(part)
            self.at[s] += lengths[s]


def values_of(name: str, lengths: Sequence[int], seed: int) -> list[list[Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [[torch.randn(n, w, generator=generator) for w in OPS[name][1]] for n in lengths]


@pytest.mark.matrix(2)
@pytest.mark.parametrize("name", OPS)
@settings(deadline=None, max_examples=15)
@given(data=st.data(), lengths=st.lists(st.integers(1, 150), min_size=1, max_size=4), seed=st.integers(0, 99))
def test_any_schedule_gives_what_is_meant(name: str, data: st.DataObject, lengths: list[int], seed: int) -> None:
    op, _, meant = OPS[name]
    values = values_of(name, lengths, seed)
    sequences = Sequences(op, values)
    while going := [s for s, n in enumerate(lengths) if sequences.at[s] < n]:
        chosen = data.draw(st.lists(st.sampled_from(going), min_size=1, unique=True))
        left = {s: lengths[s] - sequences.at[s] for s in chosen}
        sequences.step({s: min(n, data.draw(st.sampled_from((1, 2, 63, 64, 65, 150)))) for s, n in left.items()})
    for own, results in zip(values, sequences.results, strict=True):
        expected = meant(sequences.weights.found, *(value.double() for value in own))
        torch.testing.assert_close(torch.cat(results).double(), expected, rtol=1e-3, atol=2e-4)


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("lengths", [(1, 1, 1), (70, 1, 3)], ids=["alone", "together"])
def test_a_broken_sequence_breaks_no_other(name: str, lengths: Sequence[int]) -> None:
    values = values_of(name, lengths, 0)
    values[0][0].fill_(torch.nan)
    sequences = Sequences(OPS[name][0], values)
    sequences.step(dict(enumerate(lengths)))
    broken, *others = (torch.cat(results) for results in sequences.results)
    assert broken.isnan().any()
    assert all(other.isfinite().all() for other in others)


@pytest.mark.parametrize("name", OPS)
def test_a_decoder_that_is_called_without_states_says_so(name: str) -> None:
    op, widths, _ = OPS[name]
    step = Step(torch.zeros(1), torch.zeros(1), {}, None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="without the states of its sequences"):
        op.compiled(RandomWeights({}))(step, *(torch.zeros(1, width) for width in widths))
