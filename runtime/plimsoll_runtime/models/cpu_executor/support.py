"""What the CPU kernels have of each op: the rest is refused."""

from __future__ import annotations

from dataclasses import fields

from plimsoll_kernels.cpu.columns_records import MAX_KEY_DIM, MAX_STATES, MAX_TAPS
from plimsoll_kernels.cpu.op_records import Activation, Rule, Timed
from plimsoll_runtime.models.ops.add import Add
from plimsoll_runtime.models.ops.attention import Attend
from plimsoll_runtime.models.ops.causal_conv import Convolve
from plimsoll_runtime.models.ops.delta_rule import DeltaRule
from plimsoll_runtime.models.ops.embed import AddPositions, Embed
from plimsoll_runtime.models.ops.experts import Experts, Gate
from plimsoll_runtime.models.ops.gated_recurrence import GatedRecurrence
from plimsoll_runtime.models.ops.heads import NormHeads, Rotate, ScaleQueries
from plimsoll_runtime.models.ops.mamba2_scan import DualScan
from plimsoll_runtime.models.ops.mamba_scan import SelectiveScan
from plimsoll_runtime.models.ops.matmul import GatedProduct, Product
from plimsoll_runtime.models.ops.mla import Absorb, AttendLatent, Expand, Latent
from plimsoll_runtime.models.ops.multiply import Multiply
from plimsoll_runtime.models.ops.norm import GatedNorm, Normalise
from plimsoll_runtime.models.ops.op import Op
from plimsoll_runtime.models.ops.router import Route
from plimsoll_runtime.models.ops.scale import Scale
from plimsoll_runtime.models.ops.split import Split
from plimsoll_runtime.models.spec.attention import LatentAttention
from plimsoll_runtime.models.spec.feed_forward import SparseMixer, TopK

BIASES = ("gate_up_biases", "down_biases")


class UnfusableError(Exception):
    """The kernels have no such op, or row of ops."""


def check(op: Op) -> None:
    """Raises UnfusableError for an op of which the kernels do not have all."""
    match op:
        case Embed():
            _known(op, "table", "scale", "texts")
            if op.texts is not None and op.scale is not None:
                raise UnfusableError("scales no rows to which those of texts are added")
        case AddPositions():
            _known(op, "table", "first")
        case Normalise():
            _known(op, "norm", "width", "weight", "bias")
            _known(op.norm, "eps", "kind", "offset", "weighted", "biased")
            if op.norm.kind == "rms" and op.bias is not None:
                raise UnfusableError("has no bias for root mean square norms")
        case Product() | GatedProduct():
            _known(op, "parts", "biases", "activation", "clip")
            _activation(op.activation)
        case NormHeads():
            _known(op, "norm", "shape", "query", "key")
            _known(op.norm, "norm", "together", "own", "turned")
            _known(op.norm.norm, "eps", "kind", "offset", "weighted")
        case Rotate():
            _known(op, "rope", "shape")
        case ScaleQueries():
            _known(op, "growth", "shape")
            _known(op.growth, "scale", "every", "offset")
        case Attend():
            _known(op, "layer", "shape", "sinks")
            known = ("scale", "window", "softcap", "chunk", "alibi", "sinks", "whole")
            _known(op.shape, "heads", "kv_heads", "head_dim", *known)
        case Latent() | Absorb() | AttendLatent() | Expand():
            _known(op, "attention", "norm", "up", "layer")
            _latent(op.attention)
        case Add():
            _known(op, "width", "scale")
        case Route():
            _known(op, "routing", "chosen", "weight", "correction", "bias")
            _routing(op)
        case Experts():
            _known(op, "chosen", "gate_up", "down", "activation", "weighs_inputs", "gated", "clamped", *BIASES)
            _activation(op.activation)
            if op.clamped is not None:
                _known(op.clamped, "alpha", "limit")
                if not op.gated or op.clamped.limit <= 0:
                    raise UnfusableError("cuts what gates open to a limit above zero, and nothing else")
        case Gate():
            _known(op, "weight")
        case Split():
            _known(op, "widths")
        case Scale():
            _known(op, "widths", "factors")
        case Multiply():
            _known(op, "width", "activation")
            _activation(None if op.activation == "none" else op.activation)
        case Convolve():
            _known(op, "state", "weight", "bias", "activation")
            _activation(op.activation)
            if op.weight.shape[1] > MAX_TAPS:
                raise UnfusableError(f"convolves {MAX_TAPS} tokens at most")
        case GatedNorm():
            _known(op, "eps", "width", "groups", "weight", "after")
        case DualScan():
            _known(op, "state", "shape", "decay", "skip", "step_bias", "limits")
        case DeltaRule():
            _known(op, "state", "shape", "decay", "step_bias")
            if op.shape.key_dim > MAX_KEY_DIM:
                raise UnfusableError(f"has keys of the delta rule of {MAX_KEY_DIM} dimensions at most")
        case SelectiveScan():
            _known(op, "state", "decay", "skip", "step_bias")
            if op.decay.shape[1] > MAX_STATES:
                raise UnfusableError(f"keeps {MAX_STATES} numbers a column of Mamba's scan at most")
        case GatedRecurrence():
            _known(op, "state", "decay", "recurrent", "recurrent_bias", "inputs", "inputs_bias")
        case _:
            raise UnfusableError(f"has no {type(op).__name__}")
    if op.kind.name not in Timed.__members__:
        raise UnfusableError(f"times nothing as {op.kind}")


def _activation(name: str | None) -> None:
    if name is not None and name.upper() not in Activation.__members__:
        raise UnfusableError(f"has no activation {name}")


def _latent(own: LatentAttention) -> None:
    _known(own, "heads", "rank", "plain", "value", "rope", "scale", "norm", "query_rank", "bias", "growth")
    _known(own.norm, "eps", "kind", "offset", "weighted")
    if own.growth is not None:
        _known(own.growth, "scale", "every", "offset")


def _routing(op: Route) -> None:
    match op.routing:
        case TopK() as rule:
            _known(rule, "scores", "renormalised", "corrected", "groups", "open_groups", "best", "least", "scale")
            if rule.scores.upper() not in Rule.__members__:
                raise UnfusableError(f"has no scores by {rule.scores}")
        case SparseMixer() as rule:
            _known(rule, "jitter")
            if op.correction is not None:
                raise UnfusableError("corrects no scores of a sparse mixer")
        case _:
            raise UnfusableError(f"has no routing by {type(op.routing).__name__}")


def _known(record: object, *names: str) -> None:
    """Whatever else a record says has to say nothing: records grow, and nobody is to compute less than they say."""
    for field in fields(record):  # type: ignore[arg-type]
        if field.name not in (*names, "reads", "writes", "kind") and getattr(record, field.name) != field.default:
            raise UnfusableError(f"knows no {field.name} of {type(record).__name__}")
