"""Every attention backend: its name, why it cannot serve a target, and its class, imported when it is tried."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from importlib.util import find_spec

import torch

from plimsoll_kernels.cpu.library import kernels
from plimsoll_kernels.cpu.step import MAX_HEAD_DIM, SUB_BLOCK
from plimsoll_runtime.execution.attention.base import AttentionBackend
from plimsoll_runtime.models.spec.attention import AttentionShape

FLASHINFER_HEAD_DIMS = (64, 128, 256)
FLASH_ATTN_BLOCK = 256
"""FlashAttention 2 reads paged caches whose pages are a multiple of this many tokens."""
FLASH_ATTN_MAX_HEAD_DIM = 256
CUDNN_PAGED, CUDNN_PAGED_TORCH = 92400, (2, 15)
"""The cuDNN whose diagonal ends at the last row of a paged cache, and the torch that gives it one."""
AMPERE, HOPPER, BLACKWELL = 8, 9, 10
"""Major compute capabilities."""
UNKNOWN = {
    "window": "has no windows, and the model has",
    "softcap": "caps no scores, and the model's are",
    "chunk": "attends to all before a token, and the model to its chunk",
    "alibi": "adds no ALiBi to scores, and the model does",
    "sinks": "has no sinks, and the model has",
    "latent": "reads values beside keys, and the model's keys are its values",
}
"""What a backend lacks, by the field of AttentionShape that says more."""
HALF = (torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True)
class Target:
    """What attention is to be computed for: a device, the dtype of model and cache, one attention shape a layer, and
    the tokens of a block.

    `unfused`: why the kernels that compute a whole step do not compute the model's, None if they do.
    `whole`: shapes of layers that see prompts from both ends; then there are no others.
    """

    device: torch.device
    dtype: torch.dtype
    shapes: Sequence[AttentionShape]
    block_size: int
    unfused: str | None = None
    whole: Sequence[AttentionShape] = ()


@dataclass(frozen=True, slots=True)
class Entry:
    """Why a backend cannot run there (None if it can), and its class, imported only when it is called for.

    A `last_resort` is only taken where no other can run: its memory grows with the square of a prompt.
    """

    why_not: Callable[[Target], str | None]
    load: Callable[[], type[AttentionBackend]]
    last_resort: bool = False


def _no_cpu(target: Target) -> str | None:
    """Our kernels take what they were compiled for, and shapes that fill their vectors."""
    if reason := _off_cpu(target):
        return reason
    if target.block_size % SUB_BLOCK:
        return f"needs blocks of a multiple of {SUB_BLOCK} tokens, and --block-size is {target.block_size}"
    sizes = {shape.head_dim for shape in (*target.shapes, *target.whole)}
    if odd := sorted(size for size in sizes if size % SUB_BLOCK or size > MAX_HEAD_DIM):
        return (
            f"takes heads of a multiple of {SUB_BLOCK} dimensions up to {MAX_HEAD_DIM}, and the model's have {odd[0]}"
        )
    if reason := target.unfused or _unknown(target, "window", "softcap", "chunk", "alibi", "sinks", "latent"):
        return reason
    if any(shape.latent and shape.kv_heads > 1 for shape in target.shapes):
        return "reads one vector a token where keys are values, and the model has more of them"
    if kernels(target.dtype) is None:
        return f"has no kernels for {_name(target.dtype)} that this processor can run, or they were not built"
    return None


def _no_torch(target: Target) -> str | None:
    return _off_cpu(target) or _unknown(target, "window", "softcap", "chunk", "alibi", "sinks", "latent")


def _off_cpu(target: Target) -> str | None:
    if target.device.type == "cpu":
        return None
    return f"computes on a CPU, and the model is on {target.device.type}"


def _no_sdpa(target: Target) -> str | None:
    return _unknown(target, "window", "chunk", "alibi", "sinks", "latent")


def _no_triton(target: Target) -> str | None:
    if target.device.type != "cuda":
        return f"needs a CUDA or ROCm device, and the model is on {target.device.type}"
    if any(shape.alibi is not None and shape.alibi.coarse for shape in target.shapes):
        return "adds no rounded ALiBi to scores, and the model's is"
    if any(shape.latent and not _only_latent(shape) for shape in target.shapes):
        return "reads all of one vector a token where keys are values, and the model has more of them, or hides some"
    return _unknown(target, "window", "softcap", "chunk", "alibi", "sinks", "latent") or _not_installed("triton")


def _only_latent(shape: AttentionShape) -> bool:
    """Whether one vector a token is all that it says."""
    return shape == AttentionShape(shape.heads, 1, shape.head_dim, shape.scale, latent=True)


def _no_flashinfer(target: Target) -> str | None:
    if reason := _no_half(target) or _not_installed("flashinfer"):
        return reason
    if torch.version.hip is not None:
        return "needs CUDA, and this is ROCm"
    if reason := _unknown(target, "window", "softcap"):
        return reason
    odd = sorted({s.head_dim for s in target.shapes if s.head_dim not in FLASHINFER_HEAD_DIMS})
    if odd:
        return f"takes heads of {', '.join(map(str, FLASHINFER_HEAD_DIMS))} dimensions, and the model's have {odd[0]}"
    if len({shape.head_dim for shape in target.shapes}) > 1:
        # Its kernels for Hopper count from page to page in heads, of which a block of several sizes is no whole number.
        return "takes heads of one size in a block, and the model's have several"
    return None


def _no_flash_attn(target: Target) -> str | None:
    if reason := _no_half(target) or _not_installed("flash_attn"):
        return reason
    if reason := _unknown(target, "window", "softcap"):
        return reason
    if target.block_size % FLASH_ATTN_BLOCK:
        return f"needs blocks of {FLASH_ATTN_BLOCK} tokens, and --block-size is {target.block_size}"
    return _no_heads(target, FLASH_ATTN_MAX_HEAD_DIM)


def _no_flash_attn_3(target: Target) -> str | None:
    if reason := _no_half(target) or _not_installed("flash_attn_interface") or _no_cuda(target, HOPPER, "Hopper"):
        return reason
    if capability(target.device)[0] != HOPPER:
        return "is for Hopper (compute capability 9), and the device is newer"
    return _unknown(target, "window", "softcap") or _no_heads(target, FLASH_ATTN_MAX_HEAD_DIM)


def _no_torch_flash(target: Target) -> str | None:
    if reason := _no_half(target) or _no_cuda(target, AMPERE, "Ampere"):
        return reason
    if not torch.backends.cuda.is_flash_attention_available():
        return "needs a PyTorch that was built with FlashAttention"
    return _unknown(target, "window") or _no_heads(target, FLASH_ATTN_MAX_HEAD_DIM)


def _no_cudnn(target: Target) -> str | None:
    """As torch's own rules for its op have it (`check_cudnn_tensor_shapes`)."""
    if reason := _no_half(target) or _no_cuda(target, AMPERE, "Ampere"):
        return reason
    version = cudnn_version()
    if version is None:
        return "needs a PyTorch that was built with cuDNN"
    # Wider heads from cuDNN 9.10 on, and on Hopper alone.
    widest = 256 if version >= 91000 and capability(target.device) == (HOPPER, 0) else 128
    return _unknown(target) or _no_heads(target, widest)


def _no_cudnn_paged(target: Target) -> str | None:
    """As `torch.nn.attention.varlen` of 2.15 has it (`_cudnn_rejection_reasons`)."""
    if reason := _no_half(target) or _no_cuda(target, HOPPER, "Hopper"):
        return reason
    major = capability(target.device)[0]
    if major > BLACKWELL:
        return "is for Hopper and Blackwell (compute capability 9 and 10), and the device is newer"
    needed, version = ".".join(map(str, CUDNN_PAGED_TORCH)), cudnn_version()
    if _release() < CUDNN_PAGED_TORCH:
        return f"needs PyTorch {needed}, and this is {torch.__version__}"
    if version is None or version < CUDNN_PAGED:
        return f"needs cuDNN 9.24, and this is {version}"
    if target.block_size & (target.block_size - 1):
        return f"needs blocks of a power of two tokens, and --block-size is {target.block_size}"
    return _unknown(target) or _no_heads(target, 128)


def _no_cuda(target: Target, least: int, named: str) -> str | None:
    """For what NVIDIA has, from a generation on."""
    if torch.version.hip is not None:
        return "needs CUDA, and this is ROCm"
    if (found := capability(target.device))[0] < least:
        return f"needs {named} (compute capability {least}) or newer, and the device has {found[0]}.{found[1]}"
    return None


def capability(device: torch.device) -> tuple[int, int]:
    """Of an NVIDIA GPU; (0, 0) where there is none."""
    return torch.cuda.get_device_capability(device) if torch.cuda.is_available() else (0, 0)


def cudnn_version() -> int | None:
    """Such as 92400 for 9.24.0; None where torch was built without it."""
    version: int | None = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    return version


def _release() -> tuple[int, int]:
    """Of torch."""
    major, minor, *_ = torch.__version__.split(".")
    return int(major), int(minor)


def _no_heads(target: Target, widest: int) -> str | None:
    """For kernels that take heads of any multiple of 8 dimensions up to some."""
    odd = sorted({shape.head_dim for shape in target.shapes if shape.head_dim % 8 or shape.head_dim > widest})
    return f"takes heads of a multiple of 8 dimensions up to {widest}, and the model's have {odd[0]}" if odd else None


def _unknown(target: Target, *known: str) -> str | None:
    """Whatever else a shape says has to say nothing: shapes grow, and no backend is to compute less than they say."""
    for field in fields(AttentionShape):
        if field.default is MISSING or field.name in known:
            continue
        if any(getattr(shape, field.name) != field.default for shape in target.shapes):
            return UNKNOWN.get(field.name, f"knows no {field.name} of attention, and the model has it")
    return None


def _no_half(target: Target) -> str | None:
    if target.device.type != "cuda":
        return f"needs a GPU, and the model is on {target.device.type}"
    if target.dtype not in HALF:
        return f"computes in bfloat16 and float16, and the model runs in {_name(target.dtype)}"
    return None


def _not_installed(package: str) -> str | None:
    return None if find_spec(package) else f"needs the package {package}, which is not installed"


def _always(target: Target) -> str | None:
    return None


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _cpu() -> type[AttentionBackend]:
    from plimsoll_runtime.execution.attention.backends.cpu import CpuBackend

    return CpuBackend


def _torch() -> type[AttentionBackend]:
    from plimsoll_runtime.execution.attention.backends.gather.backend import GatheredBackend

    return GatheredBackend


def _sdpa() -> type[AttentionBackend]:
    from plimsoll_runtime.execution.attention.backends.sdpa import SdpaBackend

    return SdpaBackend


def _triton() -> type[AttentionBackend]:
    from plimsoll_runtime.execution.attention.backends.triton import TritonBackend

    return TritonBackend


def _flashinfer() -> type[AttentionBackend]:
    from plimsoll_runtime.execution.attention.backends.flashinfer import FlashInferBackend

    return FlashInferBackend


def _flash_attn() -> type[AttentionBackend]:
    from plimsoll_runtime.execution.attention.backends.flash_attn import FlashAttnBackend

    return FlashAttnBackend


def _flash_attn_3() -> type[AttentionBackend]:
    from plimsoll_runtime.execution.attention.backends.flash_attn import FlashAttn3Backend

    return FlashAttn3Backend


def _cudnn() -> type[AttentionBackend]:
    from plimsoll_runtime.execution.attention.backends.cudnn import CudnnBackend

    return CudnnBackend


def _cudnn_paged() -> type[AttentionBackend]:
    from plimsoll_runtime.execution.attention.backends.cudnn import CudnnPagedBackend

    return CudnnPagedBackend


def _torch_flash() -> type[AttentionBackend]:
    from plimsoll_runtime.execution.attention.backends.torch_flash import TorchFlashBackend

    return TorchFlashBackend


def _reference() -> type[AttentionBackend]:
    from plimsoll_runtime.execution.attention.backends.reference import ReferenceBackend

    return ReferenceBackend


ENTRIES: Mapping[str, Entry] = {
    "cpu": Entry(_no_cpu, _cpu),
    "torch": Entry(_no_torch, _torch),
    "triton": Entry(_no_triton, _triton),
    "flashinfer": Entry(_no_flashinfer, _flashinfer),
    "flash-attn-3": Entry(_no_flash_attn_3, _flash_attn_3),
    "flash-attn": Entry(_no_flash_attn, _flash_attn),
    "cudnn-paged": Entry(_no_cudnn_paged, _cudnn_paged),
    "cudnn": Entry(_no_cudnn, _cudnn),
    "torch-flash": Entry(_no_torch_flash, _torch_flash),
    "sdpa": Entry(_no_sdpa, _sdpa),
    "reference": Entry(_always, _reference, last_resort=True),
}
"""In the order in which they are tried: where time runs out, what comes later is not tried."""
