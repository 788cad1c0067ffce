"""Builds an engine from its configuration: device, model, memory plan, scheduler, runner, in that order."""

import time
from dataclasses import dataclass
from functools import partial

import torch

from engine.config import EngineConfig, SchedulerConfig
from engine.core import EngineCore
from engine.device import DeviceDefaults, device_defaults, resolve_device, use_threads
from engine.encoding.build import build_encoder_core
from engine.errors import ConfigError
from engine.heap import give_back_freed_memory
from engine.kv_cache.manager import KVCacheManager
from engine.kv_cache.tensors import KVCacheTensors
from engine.model.capacity import MemoryPlan, free_memory_bytes, plan_memory
from engine.model.description import ModelDescription, describe_model
from engine.model.hub import resolve
from engine.model.loader import LoadedModel, load_described
from engine.model.spec import ModelSpec
from engine.observer import StepObserver
from engine.request import GenerationRequest
from engine.runner import ModelRunner
from engine.sampling.grammar.cache import Grammars
from engine.scheduling.base import Scheduler
from engine.scheduling.policies import policy_class
from engine.scheduling.policy import Limits, Policy
from engine.step.graphs import batch_sizes_for
from engine.step.tapes import row_counts
from engine.stepping import Core
from engine.text.tokenizer import load_tokenizer
from engine.trace import TraceWriter

_MAX_TAPED_ROWS = 2048                                 # of a step on a CPU; a larger one is computed kernel by kernel


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """What will be built, decided before any weight is read."""

    description: ModelDescription
    policy: Policy
    limits: Limits
    memory: MemoryPlan

    @property
    def device(self) -> torch.device:
        return self.description.device

    @property
    def max_num_rows(self) -> int:
        """Of a step, in tokens."""
        return _max_num_rows(self.policy, self.limits, self.description)


def _max_num_rows(policy: Policy, limits: Limits, description: ModelDescription) -> int:
    return max(limits.max_num_batched_tokens, description.max_model_len if policy.whole_prompts else 0)


def plan_engine(config: EngineConfig, description: ModelDescription | None = None) -> EnginePlan:
    """Raises ConfigError, naming the field, if the engine cannot run here as configured."""
    device = resolve_device(config)
    defaults = device_defaults(device)
    description = description or describe_configured(config)
    if not description.spec.causal:
        raise ConfigError(f"model: {description.resolved.name} is an encoder; it generates no text")
    policy, limits = build_policy(config.scheduler, defaults)
    memory = plan_memory(
        description,
        config.kv_cache,
        block_size=config.kv_cache.block_size or policy.default_block_size or defaults.block_size,
        max_num_batched_tokens=_max_num_rows(policy, limits, description),
        max_num_seqs=limits.max_num_seqs,
        free_bytes=free_memory_bytes(str(device)),
        max_kv_bytes=defaults.max_kv_bytes,
    )
    return EnginePlan(description, policy, limits, memory)


def build_core(
    config: EngineConfig,
    *,
    model: LoadedModel | None = None,
    observer: StepObserver | None = None,
    description: ModelDescription | None = None,
) -> EngineCore:
    """Load the model and build the engine around it. Raises ConfigError.

    A `model` that is loaded already, for the same model, device and dtype, is taken as it is: engines that do not run
    at the same time may share its weights. `observer` takes the place of the configuration's trace.
    """
    use_threads(config)
    torch.manual_seed(config.seed)
    plan = plan_engine(config, description)
    description, memory, device = plan.description, plan.memory, plan.device
    tokenizer = load_tokenizer(description.resolved.path, trust_remote_code=config.trust_remote_code)
    grammars = Grammars(tokenizer, **config.grammar.model_dump())
    model = model or load_described(
        description, num_valid_tokens=tokenizer.vocab_size, tokenizer_eos_token_ids=tokenizer.eos_token_ids
    )
    vocab_size = min(model.spec.vocab_size, tokenizer.vocab_size)
    clock = time.monotonic
    on_gpu = device.type != "cpu"                      # a CPU computes on the host's own time: nothing to overlap with
    kv = KVCacheManager(
        memory.num_blocks,
        memory.block_size,
        prefix_caching=config.kv_cache.prefix_caching,
        salt=partial(prefix_salt, model.spec),
    )
    runner = ModelRunner(
        model.decoder,
        KVCacheTensors.allocate(
            model.spec, memory.num_blocks, memory.block_size, description.dtypes.kv_cache, device
        ),
        max_num_seqs=plan.limits.max_num_seqs,
        max_model_len=description.max_model_len,
        eos_token_ids=model.eos_token_ids,
        vocab_size=vocab_size,
        device=device,
        clock=clock,
        tape_row_counts=() if on_gpu else row_counts(min(plan.max_num_rows, _MAX_TAPED_ROWS)),
        graph_batch_sizes=batch_sizes_for(device, plan.limits.max_num_seqs),
        grammars=grammars,
    )
    runner.warm_up()
    return EngineCore(
        Scheduler(plan.policy, kv, max_model_len=description.max_model_len, clock=clock),
        runner,
        tokenizer,
        model_name=description.resolved.name,
        vocab_size=vocab_size,
        eos_token_ids=model.eos_token_ids,
        max_num_waiting=config.max_num_waiting,
        clock=clock,
        overlap=on_gpu,
        observer=observer or _trace(config, plan),
        grammars=grammars,
        prepare=runner.prepare,
    )


def build_any_core(config: EngineConfig) -> Core:
    """The core that the model of `config` needs. Raises ConfigError."""
    core = _build_any_core(config)
    give_back_freed_memory()                           # the model's file and description are gone only now
    return core


def _build_any_core(config: EngineConfig) -> Core:
    use_threads(config)
    description = describe_configured(config)
    if description.spec.causal:
        return build_core(config, description=description)
    return build_encoder_core(config, description)


def describe_configured(config: EngineConfig) -> ModelDescription:
    """What `config` means on this machine. Raises ConfigError."""
    return describe_model(resolve(config.model), config, str(resolve_device(config)))


def _trace(config: EngineConfig, plan: EnginePlan) -> TraceWriter | None:
    if config.trace is None:
        return None
    header = {
        "model": plan.description.resolved.name,
        "policy": config.scheduler.policy,
        "parameters": config.scheduler.parameters,
        "block_size": plan.memory.block_size,
        "num_blocks": plan.memory.num_blocks,
        "max_model_len": plan.description.max_model_len,
    }
    return TraceWriter.open(config.trace, header)


def prefix_salt(spec: ModelSpec, generation: GenerationRequest) -> str:
    """Sequences share cached prefixes under one salt: where rotations depend on the length, only equal lengths do."""
    shared_length = spec.rope_shared_length
    num_prompt_tokens = len(generation.prompt_token_ids)
    return "" if shared_length is None or num_prompt_tokens <= shared_length else str(num_prompt_tokens)


def build_policy(config: SchedulerConfig, defaults: DeviceDefaults) -> tuple[Policy, Limits]:
    """The policy, and the step limits that it keeps: its own where the configuration sets them."""
    kind = policy_class(config.policy)
    limits = Limits(
        config.parameters.get("max_num_batched_tokens") or defaults.limits.max_num_batched_tokens,
        config.parameters.get("max_num_seqs") or defaults.limits.max_num_seqs,
    )
    policy = kind(kind.Parameters.model_validate(config.parameters), limits)
    return policy, policy.limits
