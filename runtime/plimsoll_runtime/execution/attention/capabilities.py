"""The capabilities of an attention backend, and the reason for a refusal if a model or a machine needs
something else.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields

import torch

from plimsoll_runtime.execution.attention import machine
from plimsoll_runtime.models.spec.attention import AttentionShape
from plimsoll_runtime.weights.stored_tensor import dtype_name

HALF = (torch.bfloat16, torch.float16)
Numbers = range | tuple[int, ...]
"""Supported sizes or major compute capabilities."""
ANY = range(sys.maxsize)
FEATURES: Mapping[str, str] = {
    "window": "sliding-window attention",
    "softcap": "soft caps of scores",
    "chunk": "chunked attention",
    "alibi": "ALiBi",
    "rounded_alibi": "ALiBi that is rounded to bfloat16",
    "sinks": "attention sinks",
    "latent": "latent attention",
    "latent_heads": "latent attention with several key heads",
    "latent_masked": "latent attention with other features",
    "whole": "bidirectional attention",
}
"""Features of a model's attention besides heads and a scale: fields of AttentionShape, and their variants."""
SCORES = ("window", "softcap", "chunk", "alibi", "rounded_alibi", "sinks")
LATENT = ("latent", "latent_heads", "latent_masked")
"""Lists of features for backends that support all of a list. A feature that one of these backends lacks is in no list.
"""


@dataclass(frozen=True, slots=True)
class Target:
    """What a backend must support: a device, the dtype of model and cache, one attention shape a layer, and the tokens
    of a block.

    `unfused`: why the CPU executor does not support the model, None if it does.
    `whole`: shapes of layers with bidirectional attention; then there are no others.
    """

    device: torch.device
    dtype: torch.dtype
    shapes: Sequence[AttentionShape]
    block_size: int
    unfused: str | None = None
    whole: Sequence[AttentionShape] = ()


def multiples(of: int, most: int = ANY[-1]) -> range:
    """Return the multiples of a number, up to `most`."""
    return range(of, most + 1, of)


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a backend supports. Defaults limit nothing, except that a backend has only the features that it states.

    - `devices`: "rocm" is an AMD GPU, which torch calls "cuda" as well.
    - `features`: names from FEATURES.
    - `head_dims`: supported head sizes; `block_sizes`: supported tokens of a block.
    - `compute_capability`: major ones of NVIDIA GPUs; 8 is Ampere, 9 Hopper, 10 Blackwell.
    - `needs`: libraries that must be installed, some with a lowest version: "triton", "cudnn>=9.24".
    - `checks`: checks that need code; each returns the reason for a refusal, or None. They run last.
    - `last_resort`: it is selected only if no other backend works. Its memory grows with the square of a prompt.
    """

    devices: tuple[str, ...] = ("cpu", "cuda", "rocm")
    dtypes: tuple[torch.dtype, ...] = (torch.float32, *HALF)
    features: tuple[str, ...] = ()
    head_dims: Numbers = ANY
    block_sizes: Numbers = ANY
    compute_capability: Numbers = ANY
    needs: tuple[str, ...] = ()
    checks: tuple[Callable[[Target], str | None], ...] = ()
    last_resort: bool = False

    def refusal(self, target: Target) -> str | None:
        """Return why the backend cannot serve a target, None if it can.

        Reasons that users cannot change come first, then those that an option or an installation changes.
        """
        return next(self._refusals(target), None)

    def _refusals(self, target: Target) -> Iterator[str]:
        device = "rocm" if target.device.type == "cuda" and torch.version.hip else target.device.type
        if device not in self.devices:
            yield _only("devices", ", ".join(self.devices), f"the model is on {device}")
        if device == "cuda" and (found := machine.capability(target.device))[0] not in self.compute_capability:
            asked = f"the GPU has {found[0]}.{found[1]}"
            yield _only("compute capabilities", numbers_text(self.compute_capability), asked)
        shapes = (*target.shapes, *target.whole)
        if lacking := set().union(*map(features_of, shapes)).difference(self.features):
            names = sorted(FEATURES.get(feature, feature) for feature in lacking)
            yield f"does not support {', '.join(names)}, which the model has"
        if odd := {shape.head_dim for shape in shapes if shape.head_dim not in self.head_dims}:
            yield _only("head sizes", numbers_text(self.head_dims), f"the model has {min(odd)}")
        if target.dtype not in self.dtypes:
            running = dtypes_text(target.dtype)
            yield _only("dtypes", dtypes_text(*self.dtypes), f"the model runs in {running} (--dtype)")
        if target.block_size not in self.block_sizes:
            yield _only("block sizes", numbers_text(self.block_sizes), f"--block-size is {target.block_size}")
        for need in self.needs:
            library, _, least = need.partition(">=")
            if (version := machine.installed(library)) is None:
                yield f"needs {library}, which is not installed"
            elif machine.release(version) < machine.release(least):
                yield f"needs {need}, and {version} is installed"
        yield from filter(None, (check(target) for check in self.checks))


def features_of(shape: AttentionShape) -> set[str]:
    """Return the features of a shape besides heads and a scale: names from FEATURES, or of fields that it does not list
    yet.
    """
    found = {f.name for f in fields(shape) if f.default is not MISSING and getattr(shape, f.name) != f.default}
    if shape.alibi is not None and shape.alibi.coarse:
        found.add("rounded_alibi")
    if shape.latent and len(found) > 1:
        found.add("latent_masked")
    if shape.latent and shape.kv_heads > 1:
        found.add("latent_heads")
    return found


def numbers_text(numbers: Numbers) -> str:
    """Return numbers as text for an error message."""
    if isinstance(numbers, tuple):
        return ", ".join(map(str, numbers))
    counted = f"multiples of {numbers.step}" if numbers.step > 1 else f"{numbers.start} or more"
    return counted if numbers.stop >= ANY.stop else f"{counted} up to {numbers[-1]}"


def dtypes_text(*dtypes: torch.dtype) -> str:
    """Return dtypes as text for an error message."""
    return ", ".join(map(dtype_name, dtypes))


def _only(what: str, supported: str, asked: str) -> str:
    return f"supports only these {what}: {supported}; {asked}"
