"""Finds the family of a config: decoders, encoders, text parts of multimodal models, and plugins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.models.families import bert, modernbert, nomic_bert, roberta
from plimsoll_runtime.models.families.common.config import saved_class
from plimsoll_runtime.models.registry.llama_cpp import as_llama_cpp_has_it
from plimsoll_runtime.models.spec.decoder import DecoderSpec
from plimsoll_runtime.models.spec.pooling import Pooling
from plimsoll_runtime.weights.files import CONVERTED, LLAMA_CPP
from plimsoll_runtime.weights.quantisation import quantisation_of

BY_TEXT_CONFIG = {
    "Gemma3ForConditionalGeneration",
    "Gemma3nForConditionalGeneration",
    "Gemma4ForConditionalGeneration",
    "Gemma4UnifiedForConditionalGeneration",
    "InternVLForConditionalGeneration",
    "Llama4ForConditionalGeneration",
    "Kimi_K25ForConditionalGeneration",
    "LlavaForConditionalGeneration",
    "Mistral3ForConditionalGeneration",
    "Qwen2VLForConditionalGeneration",
    "Qwen2_5_VLForConditionalGeneration",
    "Qwen3VLForConditionalGeneration",
    "Qwen3_5ForConditionalGeneration",
    "Qwen3_5MoeForConditionalGeneration",
}
"""Multimodal architectures whose `text_config` describes the text model."""
OWN_TYPES = {"qwen2_vl_text": "qwen2", "qwen2_5_vl_text": "qwen2", "qwen3_vl_text": "qwen3"}
"""Types of text models that equal another type if the input is only text."""
_OF_IMAGES = ("mrope_section", "mrope_interleaved")
"""Rope parameters for rows and columns of an image. For text all three positions are equal."""


def text_part(config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the config of the text part of a multimodal model in BY_TEXT_CONFIG; None for other models.

    Its model_type alone names the family: `architectures` is None. Raises ModelError if the text part has no type.
    """
    names = config.get("architectures")
    if not isinstance(names, list) or not names or str(names[0]) not in BY_TEXT_CONFIG:
        return None
    text = config.get("text_config") or {k: v for k, v in config.items() if k != "vision_config"}
    if not isinstance(text, Mapping) or not isinstance(kind := text.get("model_type"), str):
        raise ModelError("config.json: text_config has no model_type")
    kind = kind if text is not config else f"{kind}_text"
    tied = config.get("tie_word_embeddings", text.get("tie_word_embeddings"))
    ropes = {field: _of_text(text.get(field)) for field in ("rope_parameters", "rope_scaling")}
    found = {**text, **ropes, "architectures": None, "model_type": OWN_TYPES.get(kind, kind)}
    return found if tied is None else {**found, "tie_word_embeddings": tied}


def _of_text(rope: Any) -> Any:
    if not isinstance(rope, Mapping):
        return rope
    found = {k: v for k, v in rope.items() if k not in _OF_IMAGES}
    return {k: "default" if k in ("type", "rope_type") and v == "mrope" else v for k, v in found.items()}


Describe = Callable[[Mapping[str, Any]], DecoderSpec]
ENTRY_POINTS = "plimsoll.models"
"""Entry point group of plugins: the name is an architecture (LlamaForCausalLM), the object a `Describe`."""


@dataclass(frozen=True, slots=True)
class Family:
    """An architecture: class in Transformers, model_type, and the function in `models/families` that describes it.

    The module is imported on first use.
    """

    architecture: str
    model_type: str
    module: str
    function: str = "describe"

    def describe(self, config: Mapping[str, Any]) -> DecoderSpec:
        """Return the spec of a config. Raises ModelError for an unsupported one."""
        found: Describe = getattr(import_module(f"plimsoll_runtime.models.families.{self.module}"), self.function)
        return found(config)


_FAMILIES = (
    Family("LlamaForCausalLM", "llama", "llama"),
    Family("Llama4ForCausalLM", "llama4_text", "llama4"),
    Family("MistralForCausalLM", "mistral", "mistral"),
    Family("MinistralForCausalLM", "ministral", "ministral"),
    Family("Ministral3ForCausalLM", "ministral3", "ministral3"),
    Family("Qwen2ForCausalLM", "qwen2", "qwen2"),
    Family("Qwen3ForCausalLM", "qwen3", "qwen3"),
    Family("GemmaForCausalLM", "gemma", "gemma"),
    Family("Gemma2ForCausalLM", "gemma2", "gemma2"),
    Family("Gemma3ForCausalLM", "gemma3_text", "gemma3"),
    Family("Gemma3nForCausalLM", "gemma3n_text", "gemma3n"),
    Family("Gemma4ForCausalLM", "gemma4_text", "gemma4"),
    Family("Gemma4UnifiedForCausalLM", "gemma4_unified_text", "gemma4", "describe_unified"),
    Family("PhiForCausalLM", "phi", "phi"),
    Family("Phi3ForCausalLM", "phi3", "phi3"),
    Family("GPT2LMHeadModel", "gpt2", "gpt2"),
    Family("GPTNeoForCausalLM", "gpt_neo", "gpt_neo"),
    Family("GPTNeoXForCausalLM", "gpt_neox", "gpt_neox"),
    Family("GPTJForCausalLM", "gptj", "gptj"),
    Family("GPTBigCodeForCausalLM", "gpt_bigcode", "gpt_bigcode"),
    Family("Starcoder2ForCausalLM", "starcoder2", "starcoder2"),
    Family("FalconForCausalLM", "falcon", "falcon"),
    Family("BloomForCausalLM", "bloom", "bloom"),
    Family("MptForCausalLM", "mpt", "mpt"),
    Family("OPTForCausalLM", "opt", "opt"),
    Family("StableLmForCausalLM", "stablelm", "stablelm"),
    Family("CohereForCausalLM", "cohere", "cohere"),
    Family("Cohere2ForCausalLM", "cohere2", "cohere", "describe_v2"),
    Family("OlmoForCausalLM", "olmo", "olmo"),
    Family("Olmo2ForCausalLM", "olmo2", "olmo2"),
    Family("Olmo3ForCausalLM", "olmo3", "olmo2", "describe_v3"),
    Family("GraniteForCausalLM", "granite", "granite"),
    Family("GlmForCausalLM", "glm", "glm"),
    Family("Glm4ForCausalLM", "glm4", "glm", "describe_normed"),
    Family("SmolLM3ForCausalLM", "smollm3", "smollm3"),
    Family("Exaone4ForCausalLM", "exaone4", "exaone4"),
    Family("NemotronForCausalLM", "nemotron", "nemotron"),
    Family("Ernie4_5ForCausalLM", "ernie4_5", "ernie"),
    Family("SeedOssForCausalLM", "seed_oss", "seed_oss"),
    Family("HunYuanDenseV1ForCausalLM", "hunyuan_v1_dense", "hunyuan"),
    Family("ArceeForCausalLM", "arcee", "arcee"),
    Family("HeliumForCausalLM", "helium", "helium"),
    Family("MixtralForCausalLM", "mixtral", "mixtral"),
    Family("Qwen2MoeForCausalLM", "qwen2_moe", "qwen2_moe"),
    Family("Qwen3MoeForCausalLM", "qwen3_moe", "qwen3_moe"),
    Family("OlmoeForCausalLM", "olmoe", "olmoe"),
    Family("GraniteMoeForCausalLM", "granitemoe", "granite", "describe_moe"),
    Family("GraniteMoeSharedForCausalLM", "granitemoeshared", "granite", "describe_shared"),
    Family("PhimoeForCausalLM", "phimoe", "phimoe"),
    Family("Glm4MoeForCausalLM", "glm4_moe", "glm4_moe"),
    Family("Ernie4_5_MoeForCausalLM", "ernie4_5_moe", "ernie", "describe_moe"),
    Family("HunYuanMoEV1ForCausalLM", "hunyuan_v1_moe", "hunyuan", "describe_moe"),
    Family("GptOssForCausalLM", "gpt_oss", "gpt_oss"),
    Family("DeepseekV2ForCausalLM", "deepseek_v2", "deepseek", "describe_v2"),
    Family("DeepseekV3ForCausalLM", "deepseek_v3", "deepseek", "describe_v3"),
    Family("Glm4MoeLiteForCausalLM", "glm4_moe_lite", "glm4_moe_lite"),
    Family("Mistral4ForCausalLM", "mistral4", "mistral4"),
    Family("YoutuForCausalLM", "youtu", "youtu"),
    Family("MiniCPM3ForCausalLM", "minicpm3", "minicpm3"),
    Family("MambaForCausalLM", "mamba", "mamba"),
    Family("FalconMambaForCausalLM", "falcon_mamba", "mamba", "describe_falcon"),
    Family("Mamba2ForCausalLM", "mamba2", "mamba", "describe_v2"),
    Family("Lfm2ForCausalLM", "lfm2", "lfm2"),
    Family("Lfm2MoeForCausalLM", "lfm2_moe", "lfm2", "describe_moe"),
    Family("BambaForCausalLM", "bamba", "bamba"),
    Family("GraniteMoeHybridForCausalLM", "granitemoehybrid", "granite_hybrid"),
    Family("FalconH1ForCausalLM", "falcon_h1", "falcon_h1"),
    Family("JambaForCausalLM", "jamba", "jamba"),
    Family("NemotronHForCausalLM", "nemotron_h", "nemotron_h"),
    Family("RecurrentGemmaForCausalLM", "recurrent_gemma", "recurrent_gemma"),
    Family("Qwen3NextForCausalLM", "qwen3_next", "qwen3_next"),
    Family("Qwen3_5ForCausalLM", "qwen3_5_text", "qwen3_next", "describe_dense"),
    Family("Qwen3_5MoeForCausalLM", "qwen3_5_moe_text", "qwen3_next", "describe_moe"),
    Family("GraniteSWAForCausalLM", "granite_swa", "granite_swa"),
    Family("GraniteMoeSWAForCausalLM", "granitemoe_swa", "granite_swa", "describe_moe"),
    Family("CodeGenForCausalLM", "codegen", "codegen"),
    Family("OpenAIGPTLMHeadModel", "openai-gpt", "openai_gpt"),
    Family("MiniMaxM2ForCausalLM", "minimax_m2", "minimax_m2"),
)
FAMILIES: Mapping[str, Describe] = {family.architecture: family.describe for family in _FAMILIES}
MODEL_TYPES: Mapping[str, str] = {family.model_type: family.architecture for family in _FAMILIES}


def describe(config: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of a config.json. Raises ModelError naming an unsupported architecture or field."""
    quantisation_of(config)  # raises ModelError for unsupported quantisation
    if (part := text_part(config)) is not None:
        return replace(describe(part), is_part=True)
    name = _architecture(config)
    registered = _registered()
    if name in registered:
        found: Describe = registered[name].load()
        return found(config)
    if name not in FAMILIES:
        known = ", ".join(sorted({*FAMILIES, *registered}))
        raise ModelError(f"config.json: architecture {name} is not supported; supported are {known}")
    spec = FAMILIES[name](config)
    return as_llama_cpp_has_it(spec) if config.get(CONVERTED) == LLAMA_CPP else spec


def plugins() -> dict[str, str]:
    """Return the architectures that plugins register -> the object that describes each, as MODULE:OBJECT."""
    return {name: point.value for name, point in _registered().items()}


def has_program(config: Mapping[str, Any]) -> bool:
    """Return whether `describe` supports the architecture, or that of the text part."""
    if (part := text_part(config)) is not None:
        return has_program(part)
    name = _architecture(config)
    return name in FAMILIES or name in _registered()


def _registered() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=ENTRY_POINTS)}


def _architecture(config: Mapping[str, Any]) -> str:
    kind = str(config.get("model_type"))
    return saved_class(config) or MODEL_TYPES.get(kind, kind)


@dataclass(frozen=True, slots=True)
class Encoder:
    """An encoder: its class in Transformers, the function that returns its spec, and `head`.

    `head` returns the pooling of its classifier, from a config and a number of labels.
    """

    architecture: str
    describe: Callable[[Mapping[str, Any]], DecoderSpec]
    head: Callable[[Mapping[str, Any], int], Pooling]


ENCODERS: Mapping[str, Encoder] = {
    "bert": Encoder("BertModel", bert.describe, bert.head),
    "roberta": Encoder("RobertaModel", roberta.describe, roberta.head),
    "xlm-roberta": Encoder("XLMRobertaModel", roberta.describe, roberta.head),
    "camembert": Encoder("CamembertModel", roberta.describe, roberta.head),
    "modernbert": Encoder("ModernBertModel", modernbert.describe, modernbert.head),
    "nomic_bert": Encoder("NomicBertModel", nomic_bert.describe, nomic_bert.head),
}
"""Encoders by the config's model_type."""
