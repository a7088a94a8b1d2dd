"""Which encoder describes a config, by its model_type: models that see a prompt from both ends and generate nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from plimsoll_runtime.models.families import bert, modernbert, nomic_bert, roberta
from plimsoll_runtime.models.spec.decoder import DecoderSpec
from plimsoll_runtime.models.spec.pooling import Pooling


@dataclass(frozen=True, slots=True)
class Encoder:
    """By its class in Transformers; who describes it, and what becomes of a prompt where it gives so many labels."""

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
"""By what a config calls its model_type."""
