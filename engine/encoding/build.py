"""Builds the core of an encoder from its configuration: memory plan, model, runner, in that order."""

import time
from dataclasses import dataclass

from tqdm import tqdm

from engine.config import EngineConfig
from engine.device import device_defaults
from engine.encoding.core import EncoderCore, EncoderFacts
from engine.encoding.pooling import Layer, PairScores, SentenceVectors, Vectorise
from engine.encoding.runner import EncoderRunner
from engine.errors import ConfigError
from engine.model.assemble_encoder import EncoderAssembler
from engine.model.capacity import RUNTIME_BYTES, free_memory_bytes, hidden_bytes, mib, weight_bytes
from engine.model.description import ModelDescription
from engine.model.encoder import Encoder
from engine.model.layers.linear import make_linear
from engine.model.layers.mlp import PLAIN
from engine.model.sentence import DenseSpec, SentenceSpec
from engine.model.weights.checkpoint import Checkpoint
from engine.model.weights.safetensors import SafetensorsSource
from engine.scheduling.policy import Limits
from engine.text.tokenizer import load_tokenizer

_OWN_PARAMETERS = ("max_num_batched_tokens", "max_num_seqs")


@dataclass(frozen=True, slots=True)
class EncoderPlan:
    """What will be built, decided before any weight is read. Sizes in bytes."""

    limits: Limits
    weight_bytes: int
    working_bytes: int


def plan_encoder(config: EngineConfig, description: ModelDescription) -> EncoderPlan:
    """Raises ConfigError, naming the field, if the encoder cannot run here as configured."""
    _check_settings(config)
    spec, dtypes, device = description.spec, description.dtypes, description.device
    defaults = device_defaults(device).limits
    asked = config.scheduler.parameters
    limits = Limits(
        asked.get("max_num_batched_tokens") or defaults.max_num_batched_tokens,
        asked.get("max_num_seqs") or defaults.max_num_seqs,
    )
    num_tokens = max(limits.max_num_batched_tokens, description.max_model_len)     # a text is never cut
    weights = weight_bytes(spec, dtypes, description.max_model_len, device.type == "cpu")
    weights += sum(4 * layer.in_size * layer.out_size for layer in _dense_specs(description))
    in_float64 = 8 * max(spec.hidden_size, 0 if spec.gated_mlp else 2 * spec.intermediate_size)   # pooling, activation
    working = hidden_bytes(spec, dtypes, num_tokens) + num_tokens * in_float64
    working = max(working, _loading_bytes(description)) + RUNTIME_BYTES
    free = free_memory_bytes(str(device))
    if weights + working > free * config.kv_cache.memory_fraction:
        raise ConfigError(
            f"model: {description.resolved.name} does not fit: it needs weights {mib(weights)} + working memory "
            f"{mib(working)}, more than memory_fraction {config.kv_cache.memory_fraction} of {mib(free)} free. "
            f"Free some memory, lower scheduler.max_num_batched_tokens or max_model_len, or choose a smaller model."
        )
    return EncoderPlan(limits, weights, working)


def build_encoder_core(config: EngineConfig, description: ModelDescription) -> EncoderCore:
    """Raises ConfigError."""
    plan = plan_encoder(config, description)
    spec, sentence = description.spec, description.sentence
    tokenizer = load_tokenizer(description.resolved.path, trust_remote_code=config.trust_remote_code)
    encoder = load_encoder(description)
    runner = EncoderRunner(encoder, vectoriser(encoder, description), description.device)
    runner.warm_up()
    facts = EncoderFacts(
        name=description.resolved.name,
        task=description.task,
        vocab_size=min(spec.vocab_size, tokenizer.vocab_size),
        vector_size=1 if sentence is None else sentence.vector_size(spec.hidden_size),
        normalize=sentence is not None and sentence.normalize,
        max_model_len=description.max_model_len,
    )
    return EncoderCore(runner, facts, plan.limits, max_num_waiting=config.max_num_waiting, clock=time.monotonic)


def load_encoder(description: ModelDescription, *, show_progress: bool = False) -> Encoder:
    """The encoder of `description`, ready to run. Raises ConfigError for a checkpoint that does not fit its config."""
    spec = description.spec
    checkpoint = Checkpoint(spec, description.names, description.source)
    assembler = EncoderAssembler(
        spec, checkpoint, description.dtypes, description.device, description.max_model_len
    )
    title = f"loading {description.resolved.name}"
    with tqdm(total=assembler.num_parts, desc=title, unit="part", disable=not show_progress) as bar:
        return assembler.build(on_part=lambda: bar.update())


def vectoriser(encoder: Encoder, description: ModelDescription) -> Vectorise:
    """How hidden states become vectors: the model's own pooling and layers, or its head."""
    dtype = description.dtypes.activations
    if description.sentence is None:
        return PairScores(encoder, dtype)
    return SentenceVectors(
        description.sentence.pooling, [_dense(layer, description) for layer in description.sentence.dense], dtype
    )


def _dense(layer: DenseSpec, description: ModelDescription) -> Layer:
    source = SafetensorsSource(layer.folder)
    shapes: dict[str, tuple[int, ...]] = {"linear.weight": (layer.out_size, layer.in_size)}
    if layer.bias:
        shapes["linear.bias"] = (layer.out_size,)
    for name, shape in shapes.items():
        if name not in source.tensors or source.tensors[name].shape != shape:
            raise ConfigError(f"model: {layer.folder} holds no tensor {name} of shape {list(shape)}")
    bias = source.read("linear.bias") if layer.bias else None
    product = make_linear(source.read("linear.weight"), bias, description.dtypes, description.device)
    return product, (lambda x: x) if layer.activation == "identity" else PLAIN[layer.activation]


def _dense_specs(description: ModelDescription) -> tuple[DenseSpec, ...]:
    return (description.sentence or SentenceSpec()).dense


def _loading_bytes(description: ModelDescription) -> int:
    """A layer's largest product in float32, and a copy; on a GPU they pass through host memory only."""
    spec = description.spec
    if description.device.type != "cpu":
        return 0
    rows = max(spec.intermediate_size * (2 if spec.gated_mlp else 1), spec.qkv_size)
    return 4 * 2 * rows * spec.hidden_size


def _check_settings(config: EngineConfig) -> None:
    """Raises ConfigError for settings that mean something for models that generate, and nothing here."""
    foreign = [key for key in config.scheduler.parameters if key not in _OWN_PARAMETERS]
    if config.scheduler.policy != "chunked" or foreign:
        key = f"scheduler.{foreign[0]}" if foreign else "scheduler.policy"
        raise ConfigError(
            f"{key}: the model is an encoder, whose texts are packed by age and length; it takes "
            f"{' and '.join(_OWN_PARAMETERS)} only"
        )
    for key in ("capacity_tokens", "block_size"):
        if getattr(config.kv_cache, key) is not None:
            raise ConfigError(f"kv_cache.{key}: the model is an encoder, which keeps no keys and values")
    if config.trace is not None:
        raise ConfigError("trace: the model is an encoder, whose steps have no plan to write down")
