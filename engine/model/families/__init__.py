"""The model families: one file each, a function from the transformers config to a ModelSpec and a map of names."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.errors import ConfigError
from engine.model.families import bert, gemma3, llama, modernbert, opt
from engine.model.names import WeightNames
from engine.model.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class Family:
    spec: Callable[[Any], ModelSpec]
    names: WeightNames
    splits: Mapping[str, tuple[str, ...]] = field(default_factory=dict)   # of stacked tensors; see SplitSource


FAMILIES: Mapping[str, Family] = {
    "LlamaForCausalLM": Family(llama.llama_spec, llama.NAMES),
    "Qwen2ForCausalLM": Family(llama.qwen2_spec, llama.NAMES),
    "OPTForCausalLM": Family(opt.spec, opt.NAMES),
    "Gemma3ForCausalLM": Family(gemma3.spec, gemma3.NAMES),
    "Gemma3ForConditionalGeneration": Family(gemma3.spec, gemma3.NAMES),
    **dict.fromkeys(
        ("BertModel", "BertForMaskedLM", "BertForSequenceClassification"), Family(bert.bert_spec, bert.BERT_NAMES)
    ),
    **dict.fromkeys(
        (
            "RobertaModel", "RobertaForMaskedLM", "RobertaForSequenceClassification",
            "XLMRobertaModel", "XLMRobertaForMaskedLM", "XLMRobertaForSequenceClassification",
        ),
        Family(bert.roberta_spec, bert.ROBERTA_NAMES),
    ),
    **dict.fromkeys(
        ("ModernBertModel", "ModernBertForMaskedLM", "ModernBertForSequenceClassification"),
        Family(modernbert.spec, modernbert.NAMES, modernbert.SPLITS),
    ),
}


def family_of(architectures: list[str] | None, where: str) -> Family:
    """The family of a checkpoint by the `architectures` of its config."""
    for architecture in architectures or ():
        if architecture in FAMILIES:
            return FAMILIES[architecture]
    named = ", ".join(architectures or ()) or "none named"
    supported = ", ".join(sorted(FAMILIES))
    raise ConfigError(f"model: {where}: architecture {named} is not supported; supported: {supported}")
