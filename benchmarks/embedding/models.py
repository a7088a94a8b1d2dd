"""Random models of real shapes, as sentence-transformers saves them, and texts of many lengths."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from peers import places

VOCAB = 30_522
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LONGEST = 512
SYLLABLES = [c + v for c in "bdfgklmnprstvz" for v in "aeiou"]


@dataclass(frozen=True, slots=True)
class Model:
    """`config`: class name in Transformers; `values`: its fields. `body`: number of parameters in the layers' matrices,
    with all of which every token is multiplied.
    """

    name: str
    config: str
    pooling: str
    values: Mapping[str, Any]
    body: int


ENCODER = Model(
    "encoder",
    "BertConfig",
    "mean_tokens",
    {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536},
    6 * (4 * 384 * 384 + 2 * 384 * 1536),
)
"""The shape of all-MiniLM-L6: 22.7 million parameters, 91 MB in float32."""
DECODER = Model(
    "decoder",
    "Qwen3Config",
    "lasttoken",
    {
        "hidden_size": 256,
        "num_hidden_layers": 12,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "intermediate_size": 768,
        "tie_word_embeddings": True,
    },
    12 * (256 * (512 + 2 * 256) + 512 * 256 + 3 * 256 * 768),
)
"""Like Qwen3: 19.6 million parameters, 78 MB in float32."""
MODELS = (ENCODER, DECODER)


def folder_of(model: Model) -> Path:
    """Return the model's folder, created once with random weights, whose vectors are meaningless but cost the same."""
    folder = places.cache() / "benchmarks" / f"embedding-{model.name}"
    if (folder / "modules.json").is_file():
        return folder
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, model.config)(vocab_size=VOCAB, max_position_embeddings=LONGEST, **model.values)
    build: Any = transformers.AutoModel.from_config
    build(config, dtype=torch.float32).save_pretrained(folder)
    _tokenizer().save(str(folder / "tokenizer.json"))
    said = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]", "model_max_length": LONGEST}
    (folder / "tokenizer_config.json").write_text(json.dumps(said))
    flags = ("cls_token", "mean_tokens", "lasttoken")
    pooling = {f"pooling_mode_{flag}": flag == model.pooling for flag in flags}
    _write(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": model.values["hidden_size"], **pooling})
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    rows = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(kinds.items())
    ]
    _write(folder / "sentence_bert_config.json", {"max_seq_length": LONGEST, "do_lower_case": False})
    _write(folder / "modules.json", rows)
    return folder


def texts(count: int, seed: int) -> list[str]:
    """Return texts with log-normal lengths around 40, from 3 to 400 words."""
    rng, words = random.Random(seed), _words()
    lengths = [min(400, max(3, round(rng.lognormvariate(3.7, 0.9)))) for _ in range(count)]

    def word() -> str:
        return words[min(int(rng.expovariate(1 / 2000)), len(words) - 1)]

    return [" ".join(word() for _ in range(length)) for length in lengths]


def _words() -> list[str]:
    rng = random.Random(0)
    found: dict[str, None] = {}
    while len(found) < VOCAB - len(SPECIALS) - 2 * 26:
        found["".join(rng.choices(SYLLABLES, k=rng.randint(2, 4)))] = None
    return list(found)


def _tokenizer() -> Tokenizer:
    """Return a tokenizer like BERT's: one token per known word."""
    letters = [chr(ord("a") + i) for i in range(26)]
    pieces = [*SPECIALS, *letters, *(f"##{letter}" for letter in letters), *_words()]
    made = Tokenizer(models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    ends = [(token, SPECIALS.index(token)) for token in ("[CLS]", "[SEP]")]
    made.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    return made


def _write(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
