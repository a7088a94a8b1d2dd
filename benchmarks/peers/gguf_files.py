"""The measured models as GGUF for llama.cpp and OpenVINO GenAI, with the same weights that Plimsoll loads."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import gguf
import torch
from safetensors.torch import load_file
from tokenizers.pre_tokenizers import ByteLevel
from torch import Tensor

from peers import places

FloatType = Literal["BF16", "F16"]
FORMATS: dict[FloatType, torch.dtype] = {"BF16": torch.bfloat16, "F16": torch.float16}
TENSORS = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate": "ffn_gate_inp",
}
EXPERTS = {"gate_proj": "ffn_gate_exps", "up_proj": "ffn_up_exps", "down_proj": "ffn_down_exps"}
OUTER = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def from_safetensors(folder: Path, form: FloatType) -> Path:
    """Convert a Llama or Qwen3-MoE in safetensors into one GGUF in the same folder, unless it is newer than the
    weights. Return its path.
    """
    weights, target = folder / "model.safetensors", folder / f"model-{form.lower()}.gguf"
    if target.is_file() and target.stat().st_mtime > weights.stat().st_mtime:
        return target
    config = json.loads((folder / "config.json").read_text())
    unfinished = target.with_suffix(".part")
    writer = gguf.GGUFWriter(unfinished, config["model_type"].replace("_", ""))
    _metadata(writer, config, form)
    for name, tensor in _with_stacks(load_file(weights)):
        ordered = _llama_order(name, tensor, config) if config["model_type"] == "llama" else tensor
        _add(writer, _name(name), ordered, form)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    unfinished.rename(target)
    return target


def in_bfloat16(quantised: Path, folder: Path) -> Path:
    """Convert a quantised GGUF to bfloat16 with the same numbers, in `folder`, unless there is one newer than the
    quantised file. Return its path.
    """
    target = folder / f"{quantised.stem}-bf16.gguf"
    if target.is_file() and target.stat().st_mtime > quantised.stat().st_mtime:
        return target
    if not places.has_llama_cpp():
        raise places.NotInstalled("llama.cpp")
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_suffix(".part")
    command = [str(places.program("llama-quantize")), "--allow-requantize", str(quantised), str(unfinished), "BF16"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise RuntimeError(f"llama-quantize ended with {result.returncode}: {result.stderr[-1000:]}")
    unfinished.rename(target)
    return target


def _metadata(writer: Any, config: dict[str, Any], form: FloatType) -> None:
    writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{form}"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    writer.add_rope_dimension_count(head_dim)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    if "moe_intermediate_size" in config:
        writer.add_expert_count(config["num_local_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    add_vocabulary(writer, config["vocab_size"])


def _with_stacks(tensors: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors by name. A layer's experts are stacked as one tensor, [experts, ...], under the name of the
    first.
    """
    stacks: dict[str, dict[int, Tensor]] = {}
    for name, tensor in tensors.items():
        if (match := re.fullmatch(r"(.+\.mlp\.experts\.)(\d+)(\..+)", name)) is None:
            yield name, tensor
        else:
            stacks.setdefault(f"{match[1]}0{match[3]}", {})[int(match[2])] = tensor
    for name, stack in stacks.items():
        yield name, torch.stack([stack[number] for number in range(len(stack))])


def add_vocabulary(writer: Any, size: int) -> None:
    """Add made-up words in a byte-level BPE: requests are token ids, but a server must be able to decode its output."""
    letters = sorted(ByteLevel.alphabet())
    words = ["<unk>", "<s>", "</s>", *letters, letters[0] + letters[1]]
    kinds = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL]
    kinds += [gguf.TokenType.NORMAL] * (size - len(kinds))
    words += [f"w{number}" for number in range(len(words), size)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(words)
    writer.add_token_types(kinds)
    writer.add_token_merges([f"{letters[0]} {letters[1]}"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template("{{ messages[0]['content'] }}")


def _name(name: str) -> str:
    """Return GGUF's name of a tensor."""
    if name in OUTER:
        return OUTER[name]
    match = re.fullmatch(r"model\.layers\.(\d+)\.(.+)\.weight", name)
    if match is not None and match[2].startswith("mlp.experts.0."):
        return f"blk.{match[1]}.{EXPERTS[match[2].rsplit('.', 1)[1]]}.weight"
    if match is None or match[2] not in TENSORS:
        raise ValueError(f"{name} is no tensor of a Llama or a Qwen3-MoE")
    return f"blk.{match[1]}.{TENSORS[match[2]]}.weight"


def _llama_order(name: str, tensor: Tensor, config: dict[str, Any]) -> Tensor:
    """Reorder rows of queries and keys for llama.cpp, which rotates neighbouring pairs, while Transformers pairs
    halves.
    """
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    count = next((n for part, n in heads.items() if part in name), None)
    if count is None:
        return tensor
    halves = tensor.view(count, 2, tensor.shape[0] // count // 2, tensor.shape[1])
    return halves.transpose(1, 2).reshape(tensor.shape)


def _add(writer: Any, name: str, tensor: Tensor, form: FloatType) -> None:
    if tensor.dim() == 1:
        writer.add_tensor(name, tensor.float().numpy())
        return
    data = tensor.to(FORMATS[form]).contiguous().view(torch.uint8).numpy()
    writer.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType[form])
