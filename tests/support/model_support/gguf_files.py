"""GGUF files of Transformers models, written and read by the gguf package, as a reference for our reader."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind
from model_support.gguf_converted import TRANSPOSED, converted, is_converted
from model_support.gguf_pairs import own_pairs
from model_support.tiny import SHIFTED
from numpy.typing import NDArray
from torch import Tensor

from peers.gguf_files import add_vocabulary
from plimsoll_runtime.weights.gguf.metadata import GgufTensor

ARCHITECTURES = {
    "LlamaConfig": gguf.MODEL_ARCH.LLAMA,
    "Qwen2Config": gguf.MODEL_ARCH.QWEN2,
    "Qwen3Config": gguf.MODEL_ARCH.QWEN3,
    "Gemma3TextConfig": gguf.MODEL_ARCH.GEMMA3,
    "GemmaConfig": gguf.MODEL_ARCH.GEMMA,
    "Gemma3nTextConfig": gguf.MODEL_ARCH.GEMMA3N,
    "Gemma4TextConfig": gguf.MODEL_ARCH.GEMMA4,
    "Gemma2Config": gguf.MODEL_ARCH.GEMMA2,
    "PhiConfig": gguf.MODEL_ARCH.PHI2,
    "Phi3Config": gguf.MODEL_ARCH.PHI3,
    "Starcoder2Config": gguf.MODEL_ARCH.STARCODER2,
    "StableLmConfig": gguf.MODEL_ARCH.STABLELM,
    "CohereConfig": gguf.MODEL_ARCH.COMMAND_R,
    "Cohere2Config": gguf.MODEL_ARCH.COHERE2,
    "Olmo2Config": gguf.MODEL_ARCH.OLMO2,
    "GraniteConfig": gguf.MODEL_ARCH.GRANITE,
    "NemotronConfig": gguf.MODEL_ARCH.NEMOTRON,
    "SmolLM3Config": gguf.MODEL_ARCH.SMOLLM3,
    "SeedOssConfig": gguf.MODEL_ARCH.SEED_OSS,
    "HunYuanDenseV1Config": gguf.MODEL_ARCH.HUNYUAN_DENSE,
    "Ernie4_5Config": gguf.MODEL_ARCH.ERNIE4_5,
    "Glm4Config": gguf.MODEL_ARCH.GLM4,
    "ArceeConfig": gguf.MODEL_ARCH.ARCEE,
    "MixtralConfig": gguf.MODEL_ARCH.LLAMA,
    "Qwen2MoeConfig": gguf.MODEL_ARCH.QWEN2MOE,
    "Qwen3MoeConfig": gguf.MODEL_ARCH.QWEN3MOE,
    "OlmoeConfig": gguf.MODEL_ARCH.OLMOE,
    "GraniteMoeSharedConfig": gguf.MODEL_ARCH.GRANITE_MOE,
    "Glm4MoeConfig": gguf.MODEL_ARCH.GLM4_MOE,
    "Ernie4_5_MoeConfig": gguf.MODEL_ARCH.ERNIE4_5_MOE,
    "MiniMaxM2Config": gguf.MODEL_ARCH.MINIMAXM2,
    "FalconConfig": gguf.MODEL_ARCH.FALCON,
    "GPT2Config": gguf.MODEL_ARCH.GPT2,
    "GPTBigCodeConfig": gguf.MODEL_ARCH.STARCODER,
    "GPTNeoXConfig": gguf.MODEL_ARCH.GPTNEOX,
    "BloomConfig": gguf.MODEL_ARCH.BLOOM,
    "MptConfig": gguf.MODEL_ARCH.MPT,
    "GptOssConfig": gguf.MODEL_ARCH.GPT_OSS,
    "DeepseekV2Config": gguf.MODEL_ARCH.DEEPSEEK2,
    "DeepseekV3Config": gguf.MODEL_ARCH.DEEPSEEK2,
    "MambaConfig": gguf.MODEL_ARCH.MAMBA,
    "FalconMambaConfig": gguf.MODEL_ARCH.MAMBA,
    "Mamba2Config": gguf.MODEL_ARCH.MAMBA2,
    "JambaConfig": gguf.MODEL_ARCH.JAMBA,
    "FalconH1Config": gguf.MODEL_ARCH.FALCON_H1,
    "Lfm2Config": gguf.MODEL_ARCH.LFM2,
    "Lfm2MoeConfig": gguf.MODEL_ARCH.LFM2MOE,
    "GraniteMoeHybridConfig": gguf.MODEL_ARCH.GRANITE_HYBRID,
    "NemotronHConfig": gguf.MODEL_ARCH.NEMOTRON_H,
    "Qwen3NextConfig": gguf.MODEL_ARCH.QWEN3NEXT,
    "Qwen3_5TextConfig": gguf.MODEL_ARCH.QWEN35,
    "Qwen3_5MoeTextConfig": gguf.MODEL_ARCH.QWEN35MOE,
    "OlmoConfig": gguf.MODEL_ARCH.OLMO,
    "Olmo3Config": gguf.MODEL_ARCH.OLMO2,
    "Exaone4Config": gguf.MODEL_ARCH.EXAONE4,
}
REORDERED = (
    *("llama", "granite", "smollm3", "arcee", "mixtral", "granitemoeshared"),
    *("granitemoehybrid", "nemotron_h", "olmo"),
)
"""Models with Llama's converter, which reorders rows of queries and keys (`LlamaModel.permute`)."""

SCALES: Mapping[Kind, tuple[int, float]] = {
    Kind.Q2_K: (80, 1.5),
    Kind.Q3_K: (108, 0.0),
    Kind.Q4_K: (0, 7.5),
    Kind.Q5_K: (0, 15.5),
    Kind.Q6_K: (208, 0.0),
    Kind.IQ1_S: (0, 0.0),
    Kind.IQ2_XXS: (0, 0.0),
    Kind.IQ2_XS: (0, 0.0),
    Kind.IQ2_S: (0, 0.0),
    Kind.IQ3_XXS: (0, 0.0),
    Kind.IQ3_S: (0, 0.0),
    Kind.IQ4_NL: (0, 0.0),
    Kind.IQ4_XS: (0, 0.0),
}
"""Types that the gguf package decodes but cannot write: the offset of a block's float16 scale, and the factor of a
second scale after it, for the subtracted value, which makes the mean about zero."""


SUFFIXES = (".weight", ".bias")


def architecture_of(config: Any) -> gguf.MODEL_ARCH:
    """Return the GGUF architecture of a config; Nemotron-H with experts has its own."""
    if config.model_type == "nemotron_h" and "moe" in config.layers_block_type:
        return gguf.MODEL_ARCH.NEMOTRON_H_MOE
    return ARCHITECTURES[type(config).__name__]


def gguf_name(config: Any, name: str) -> str:
    """Return llama.cpp's name of a parameter."""
    if name.startswith("blk."):
        return name
    architecture = architecture_of(config)
    names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    found = names.get_name(name, SUFFIXES) or names.get_name(name.removeprefix("transformer."), SUFFIXES)
    assert found is not None, name
    return str(found)


def write_gguf(model: Any, path: Path, kind: Kind, *, spelt: bool = False, parts_of: int = 0, **extra: Any) -> None:
    """Save a Transformers model as llama.cpp's converter does: matrices in one type, vectors in float32.

    `spelt`: with a vocabulary that llama.cpp can write outputs with. `parts_of`: tensors for each file, 0: all in one.
    `extra` are calls of GGUFWriter by name (rope_scaling_factor=8.0 for add_rope_scaling_factor(8.0)).
    """
    config = model.config
    config.allow_global_per_layer_attribute_access = True  # a model whose heads differ by layer; this is the plain size
    arch = gguf.MODEL_ARCH_NAMES[architecture_of(config)]
    writer = gguf.GGUFWriter(path, arch, split_max_tensors=parts_of)
    pairs = {key: value for key, value in (_metadata(config) | extra).items() if value is not None}
    if spelt:
        del pairs["token_list"]
        add_vocabulary(writer, config.vocab_size)
    for key, value in pairs.items():
        getattr(writer, f"add_{key}")(value)
    if (getattr(config, "rope_parameters", None) or {}).get("rope_type") == "llama3":
        writer.add_tensor("rope_freqs.weight", rope_factors(model).numpy())
    if config.model_type == "gemma4_text":
        writer.add_tensor("rope_freqs.weight", unturned_factors(config).numpy())
    for name, parameter in converted(model) if is_converted(config) else model.named_parameters():
        values = to_llama_cpp(config, name, parameter.detach())
        stored = Kind.F32 if values.dim() == 1 or _is_wide(gguf_name(config, name), values, kind) else kind
        writer.add_tensor(gguf_name(config, name), encode(values, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _is_wide(name: str, values: Tensor, kind: Kind) -> bool:
    """Return whether a matrix is stored in float32 in any file."""
    parts = ("gate_inp", "ssm_a", "ssm_d", "ssm_conv1d", "ssm_norm", "shortconv.conv")
    return (
        any(f".{part}" in name for part in (*parts, "bias")) or values.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0] != 0
    )


def round_to(model: Any, kind: Kind) -> None:
    """Round a model's matrices to numbers that a type can store, in the converter's blocks."""
    config = model.config
    for name, parameter in model.named_parameters():
        values = parameter.detach()
        if name.endswith("kv_b_proj.weight"):
            each = values.view(config.num_attention_heads, -1, values.shape[1])
            keys, others = each[:, : config.qk_nope_head_dim], each[:, config.qk_nope_head_dim :]
            parameter.data = torch.cat([_rounded(keys.mT, kind).mT, _rounded(others, kind)], 1).view(values.shape)
        elif name.endswith(TURNED.get(config.model_type, ("-",))):
            parameter.data = _rounded(values.mT, kind).mT.contiguous()
        elif parameter.dim() > 1:
            parameter.data = _rounded(values, kind)


TURNED: Mapping[str, tuple[str, ...]] = {"gpt2": TRANSPOSED, "gpt_oss": ("experts.gate_up_proj", "experts.down_proj")}
"""Matrices that the converter transposes, by model type."""


def _rounded(values: Tensor, kind: Kind) -> Tensor:
    """Round values, unless their rows do not fit the type's blocks."""
    if values.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0]:
        return values
    return torch.from_numpy(gguf.dequantize(gguf.quantize(values.contiguous().numpy(), kind), kind))


def rope_factors(model: Any) -> Tensor:
    """Return the divisors of the rope's frequencies, in which llama.cpp stores llama3's scaling."""
    config = model.config
    exponents = torch.arange(0, config.head_dim, 2) / config.head_dim
    factors: Tensor = config.rope_parameters["rope_theta"] ** -exponents / model.model.rotary_emb.inv_freq
    return factors


def unturned_factors(config: Any) -> Tensor:
    """Return divisors for a rope that rotates only the first pairs: those of the other pairs are huge."""
    full = config.layer_types.index("full_attention")
    pairs = config.per_layer_config[full].head_dim // 2
    turned = int(config.rope_parameters["full_attention"]["partial_rotary_factor"] * pairs)
    return torch.tensor([1.0] * turned + [1e30] * (pairs - turned))


def _metadata(config: Any) -> dict[str, Any]:
    ropes = getattr(config, "rope_parameters", None) or {"rope_theta": 1e4}
    positions = getattr(config, "max_position_embeddings", 512)
    plain = config.model_type in ("gpt2", "gpt_bigcode", "bloom", "falcon", "mpt")  # they have no such field
    metadata = {
        "context_length": positions,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": 4 * config.hidden_size if plain else config.intermediate_size,
        "head_count": getattr(config, "num_attention_heads", 0),
        "head_count_kv": _kv_heads(config),
        "rope_freq_base": ropes.get("full_attention", ropes)["rope_theta"],
        "vocab_size": config.vocab_size,
        "token_list": [f"w{i}" for i in range(config.vocab_size)],
    }
    if head_dim := getattr(config, "head_dim", None):
        metadata |= {"key_length": head_dim, "value_length": head_dim}
    for field in ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps", "rms_norm_eps"):
        if epsilon := getattr(config, field, None):
            metadata["layer_norm_rms_eps" if field == "rms_norm_eps" else "layer_norm_eps"] = epsilon
    if (share := ropes.get("partial_rotary_factor", 1.0)) != 1.0:
        metadata["rope_dimension_count"] = int(share * (head_dim or config.hidden_size // config.num_attention_heads))
    return metadata | own_pairs(config)


def _kv_heads(config: Any) -> int:
    if config.model_type == "gpt_bigcode":
        return 1
    if config.model_type == "falcon":
        return int(config.num_kv_heads) if config.new_decoder_architecture else 1
    own = config.model_type in ("gpt2", "gpt_neox", "bloom")  # their config classes keep unknown fields
    return int(config.num_attention_heads if own else getattr(config, "num_key_value_heads", 0))


def encode(values: Tensor, kind: Kind) -> NDArray[Any]:
    """Encode values in a type. If the gguf package cannot quantise, return random blocks of about their magnitude."""
    if kind in SCALES:
        return random_blocks(kind, values.shape[0], values.shape[1], spread=float(values.std()))
    stored: NDArray[Any] = gguf.quantize(values.numpy(), kind)
    return stored


def random_blocks(kind: Kind, rows: int, columns: int, *, spread: float, seed: int = 0) -> NDArray[np.uint8]:
    """Return random valid blocks: all scales are positive, and the standard deviation is about `spread`."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = np.random.default_rng(seed).integers(0, 256, (rows * columns // block, size), np.uint8)
    place, zero_point = SCALES[kind]

    def scaled(scale: float) -> NDArray[np.uint8]:
        blocks[:, place : place + 2] = np.array([scale], np.float16).view(np.uint8)
        if zero_point:
            blocks[:, place + 2 : place + 4] = np.array([scale * zero_point], np.float16).view(np.uint8)
        return blocks.reshape(rows, -1)

    return scaled(spread / float(gguf.dequantize(scaled(1.0), kind).std()))


def decoded_by_gguf(path: Path) -> dict[str, Tensor]:
    """Return all tensors of a file in float32, read by the gguf package; slow if the file has a vocabulary."""
    reader = gguf.GGUFReader(path)
    return {t.name: torch.from_numpy(gguf.dequantize(t.data, t.tensor_type).copy()) for t in reader.tensors}


def decoded_by_place(path: Path, places: Mapping[str, GgufTensor]) -> dict[str, Tensor]:
    """Return all tensors in float32, decoded by the gguf package at the positions that our reader found."""
    stored = np.memmap(path, np.uint8, "r")
    decoded = {}
    for name, place in places.items():
        block, size = gguf.GGML_QUANT_SIZES[Kind(place.kind)]
        rows = stored[place.offset : place.offset + prod(place.shape) // block * size]
        values = gguf.dequantize(rows.reshape(prod(place.shape[:-1]), -1), Kind(place.kind))
        decoded[name] = torch.from_numpy(values.copy()).reshape(place.shape)
    return decoded


def reference_of(config: Any, decoded: Mapping[str, Tensor]) -> Any:
    """Return the Transformers model, in float32, of a GGUF file's decoded tensors."""
    import transformers

    build: Any = transformers.AutoModelForCausalLM.from_config
    with torch.device("meta"):
        empty = build(config, dtype=torch.float32)
    weights = {}
    for name, parameter in empty.named_parameters():
        tensor = decoded[gguf_name(config, name)]
        weights[name] = from_llama_cpp(config, name, tensor.reshape(parameter.shape))
    return type(empty).from_pretrained(None, config=config, state_dict=weights, dtype=torch.float32)


def from_llama_cpp(config: Any, name: str, tensor: Tensor) -> Tensor:
    """Undo llama.cpp's conversion of a tensor."""
    if config.model_type in SHIFTED and name.endswith("norm.weight"):
        return tensor - 1
    if heads := _permuted_heads(config, name):
        return tensor.reshape(heads, -1, 2, *tensor.shape[1:]).swapaxes(1, 2).reshape(tensor.shape)
    return tensor


def to_llama_cpp(config: Any, name: str, tensor: Tensor) -> Tensor:
    """Apply llama.cpp's conversion to a tensor."""
    if config.model_type in SHIFTED and name.endswith("norm.weight"):
        return tensor + 1
    if heads := _permuted_heads(config, name):
        return tensor.reshape(heads, 2, -1, *tensor.shape[1:]).swapaxes(1, 2).reshape(tensor.shape)
    return tensor


def _permuted_heads(config: Any, name: str) -> int | None:
    """Return the heads whose rows llama.cpp reorders: it rotates neighbours, Transformers rotates halves."""
    if config.model_type not in REORDERED:
        return None
    if "q_proj" in name:
        return int(config.num_attention_heads)
    return int(config.num_key_value_heads) if "k_proj" in name else None
