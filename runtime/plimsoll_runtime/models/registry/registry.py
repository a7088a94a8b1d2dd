"""Finds the family of a config: decoders, encoders, text parts of multimodal models, and plugins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.models.families import (
    arcee,
    bamba,
    bert,
    bloom,
    codegen,
    cohere,
    deepseek,
    ernie,
    exaone4,
    falcon,
    falcon_h1,
    gemma,
    gemma2,
    gemma3,
    gemma3n,
    gemma4,
    glm,
    glm4_moe,
    glm4_moe_lite,
    gpt2,
    gpt_bigcode,
    gpt_neo,
    gpt_neox,
    gpt_oss,
    gptj,
    granite,
    granite_hybrid,
    granite_swa,
    helium,
    hunyuan,
    jamba,
    lfm2,
    llama,
    llama4,
    mamba,
    minicpm3,
    minimax_m2,
    ministral,
    ministral3,
    mistral,
    mistral4,
    mixtral,
    modernbert,
    mpt,
    nemotron,
    nemotron_h,
    nomic_bert,
    olmo,
    olmo2,
    olmoe,
    openai_gpt,
    opt,
    phi,
    phi3,
    phimoe,
    qwen2,
    qwen2_moe,
    qwen3,
    qwen3_moe,
    qwen3_next,
    recurrent_gemma,
    roberta,
    seed_oss,
    smollm3,
    stablelm,
    starcoder2,
    youtu,
)
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
    """Return the config of a multimodal model's text part, named by its model_type; None if the model is text-only.

    Raises ModelError if the text part has no type.
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
    """An architecture by its class in Transformers and its model_type, with its describe function."""

    architecture: str
    model_type: str
    describe: Describe


_FAMILIES = (
    Family("LlamaForCausalLM", "llama", llama.describe),
    Family("Llama4ForCausalLM", "llama4_text", llama4.describe),
    Family("MistralForCausalLM", "mistral", mistral.describe),
    Family("MinistralForCausalLM", "ministral", ministral.describe),
    Family("Ministral3ForCausalLM", "ministral3", ministral3.describe),
    Family("Qwen2ForCausalLM", "qwen2", qwen2.describe),
    Family("Qwen3ForCausalLM", "qwen3", qwen3.describe),
    Family("GemmaForCausalLM", "gemma", gemma.describe),
    Family("Gemma2ForCausalLM", "gemma2", gemma2.describe),
    Family("Gemma3ForCausalLM", "gemma3_text", gemma3.describe),
    Family("Gemma3nForCausalLM", "gemma3n_text", gemma3n.describe),
    Family("Gemma4ForCausalLM", "gemma4_text", gemma4.describe),
    Family("Gemma4UnifiedForCausalLM", "gemma4_unified_text", gemma4.describe_unified),
    Family("PhiForCausalLM", "phi", phi.describe),
    Family("Phi3ForCausalLM", "phi3", phi3.describe),
    Family("GPT2LMHeadModel", "gpt2", gpt2.describe),
    Family("GPTNeoForCausalLM", "gpt_neo", gpt_neo.describe),
    Family("GPTNeoXForCausalLM", "gpt_neox", gpt_neox.describe),
    Family("GPTJForCausalLM", "gptj", gptj.describe),
    Family("GPTBigCodeForCausalLM", "gpt_bigcode", gpt_bigcode.describe),
    Family("Starcoder2ForCausalLM", "starcoder2", starcoder2.describe),
    Family("FalconForCausalLM", "falcon", falcon.describe),
    Family("BloomForCausalLM", "bloom", bloom.describe),
    Family("MptForCausalLM", "mpt", mpt.describe),
    Family("OPTForCausalLM", "opt", opt.describe),
    Family("StableLmForCausalLM", "stablelm", stablelm.describe),
    Family("CohereForCausalLM", "cohere", cohere.describe),
    Family("Cohere2ForCausalLM", "cohere2", cohere.describe_v2),
    Family("OlmoForCausalLM", "olmo", olmo.describe),
    Family("Olmo2ForCausalLM", "olmo2", olmo2.describe),
    Family("Olmo3ForCausalLM", "olmo3", olmo2.describe_v3),
    Family("GraniteForCausalLM", "granite", granite.describe),
    Family("GlmForCausalLM", "glm", glm.describe),
    Family("Glm4ForCausalLM", "glm4", glm.describe_normed),
    Family("SmolLM3ForCausalLM", "smollm3", smollm3.describe),
    Family("Exaone4ForCausalLM", "exaone4", exaone4.describe),
    Family("NemotronForCausalLM", "nemotron", nemotron.describe),
    Family("Ernie4_5ForCausalLM", "ernie4_5", ernie.describe),
    Family("SeedOssForCausalLM", "seed_oss", seed_oss.describe),
    Family("HunYuanDenseV1ForCausalLM", "hunyuan_v1_dense", hunyuan.describe),
    Family("ArceeForCausalLM", "arcee", arcee.describe),
    Family("HeliumForCausalLM", "helium", helium.describe),
    Family("MixtralForCausalLM", "mixtral", mixtral.describe),
    Family("Qwen2MoeForCausalLM", "qwen2_moe", qwen2_moe.describe),
    Family("Qwen3MoeForCausalLM", "qwen3_moe", qwen3_moe.describe),
    Family("OlmoeForCausalLM", "olmoe", olmoe.describe),
    Family("GraniteMoeForCausalLM", "granitemoe", granite.describe_moe),
    Family("GraniteMoeSharedForCausalLM", "granitemoeshared", granite.describe_shared),
    Family("PhimoeForCausalLM", "phimoe", phimoe.describe),
    Family("Glm4MoeForCausalLM", "glm4_moe", glm4_moe.describe),
    Family("Ernie4_5_MoeForCausalLM", "ernie4_5_moe", ernie.describe_moe),
    Family("HunYuanMoEV1ForCausalLM", "hunyuan_v1_moe", hunyuan.describe_moe),
    Family("GptOssForCausalLM", "gpt_oss", gpt_oss.describe),
    Family("DeepseekV2ForCausalLM", "deepseek_v2", deepseek.describe_v2),
    Family("DeepseekV3ForCausalLM", "deepseek_v3", deepseek.describe_v3),
    Family("Glm4MoeLiteForCausalLM", "glm4_moe_lite", glm4_moe_lite.describe),
    Family("Mistral4ForCausalLM", "mistral4", mistral4.describe),
    Family("YoutuForCausalLM", "youtu", youtu.describe),
    Family("MiniCPM3ForCausalLM", "minicpm3", minicpm3.describe),
    Family("MambaForCausalLM", "mamba", mamba.describe),
    Family("FalconMambaForCausalLM", "falcon_mamba", mamba.describe_falcon),
    Family("Mamba2ForCausalLM", "mamba2", mamba.describe_v2),
    Family("Lfm2ForCausalLM", "lfm2", lfm2.describe),
    Family("Lfm2MoeForCausalLM", "lfm2_moe", lfm2.describe_moe),
    Family("BambaForCausalLM", "bamba", bamba.describe),
    Family("GraniteMoeHybridForCausalLM", "granitemoehybrid", granite_hybrid.describe),
    Family("FalconH1ForCausalLM", "falcon_h1", falcon_h1.describe),
    Family("JambaForCausalLM", "jamba", jamba.describe),
    Family("NemotronHForCausalLM", "nemotron_h", nemotron_h.describe),
    Family("RecurrentGemmaForCausalLM", "recurrent_gemma", recurrent_gemma.describe),
    Family("Qwen3NextForCausalLM", "qwen3_next", qwen3_next.describe),
    Family("Qwen3_5ForCausalLM", "qwen3_5_text", qwen3_next.describe_dense),
    Family("Qwen3_5MoeForCausalLM", "qwen3_5_moe_text", qwen3_next.describe_moe),
    Family("GraniteSWAForCausalLM", "granite_swa", granite_swa.describe),
    Family("GraniteMoeSWAForCausalLM", "granitemoe_swa", granite_swa.describe_moe),
    Family("CodeGenForCausalLM", "codegen", codegen.describe),
    Family("OpenAIGPTLMHeadModel", "openai-gpt", openai_gpt.describe),
    Family("MiniMaxM2ForCausalLM", "minimax_m2", minimax_m2.describe),
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
    """Return the architectures that plugins register, and the object that describes each."""
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
    """An encoder by its class in Transformers. `head` returns the pooling for a number of labels."""

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
