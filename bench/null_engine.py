"""The engine of the service around a model that computes nothing: what is left of a step is Python.

EngineCore, Scheduler, KVCacheManager, ModelRunner with its token table, buffers and sampler, and the detokenizer are
those of the service; the decoder hands out logits that were made beforehand.
"""

import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from engine.build import build_policy
from engine.config import SchedulerConfig
from engine.core import EngineCore
from engine.device import DeviceDefaults
from engine.kv_cache.manager import KVCacheManager
from engine.kv_cache.tensors import KVCacheTensors
from engine.model.inputs import BatchInputs
from engine.runner import ModelRunner
from engine.scheduling.base import Scheduler
from engine.scheduling.policy import Limits
from engine.text.tokenizer import load_tokenizer

BLOCK_SIZE = 32
STEP_TOKENS = 8192
_TOKENIZER = "random:tiny"
_PRINTABLE = range(32, 127)                        # ids of this tokenizer below 256 are bytes


class NullDecoder:
    """Row i of a step samples the i-th printable character, by logits of a vocabulary too small to take time."""

    def __init__(self, num_rows: int, vocab_size: int) -> None:
        self._hidden = torch.zeros(STEP_TOKENS, 1)
        self._logits = torch.zeros(num_rows, vocab_size)
        rows = torch.arange(num_rows)
        self._logits[rows, _PRINTABLE.start + rows % len(_PRINTABLE)] = 1.0

    def forward(self, batch: BatchInputs, kv: KVCacheTensors) -> Tensor:
        return self._hidden[: len(batch.input_ids)]

    def logits(self, hidden: Tensor) -> Tensor:
        return self._logits[: len(hidden)]


def build_null_core(
    num_seqs: int,
    *,
    scheduler: Mapping[str, Any] = SchedulerConfig().model_dump(),
    max_model_len: int = 1024,
    max_num_waiting: int = 2048,
) -> EngineCore:
    """An engine with `num_seqs` seats, or the policy's own number of them, and blocks for all who have one."""
    defaults = DeviceDefaults(Limits(STEP_TOKENS, num_seqs), block_size=BLOCK_SIZE, max_kv_bytes=None)
    policy, limits = build_policy(SchedulerConfig.model_validate(dict(scheduler)), defaults)
    block_size = policy.default_block_size or BLOCK_SIZE
    num_blocks = (limits.max_num_seqs + 1) * -(-max_model_len // block_size)
    tokenizer = load_tokenizer(_TOKENIZER)
    clock = time.perf_counter
    nothing = (torch.empty(0, block_size, 1, 1),)
    runner = ModelRunner(
        NullDecoder(limits.max_num_seqs, tokenizer.vocab_size),  # type: ignore[arg-type]
        KVCacheTensors(nothing, nothing),
        max_num_seqs=limits.max_num_seqs,
        max_model_len=max_model_len,
        eos_token_ids=frozenset(),
        vocab_size=tokenizer.vocab_size,
        device=torch.device("cpu"),
        clock=clock,
    )
    return EngineCore(
        Scheduler(policy, KVCacheManager(num_blocks, block_size), max_model_len=max_model_len, clock=clock),
        runner,
        tokenizer,
        model_name="null",
        vocab_size=tokenizer.vocab_size,
        eos_token_ids=frozenset(),
        max_num_waiting=max_num_waiting,
        clock=clock,
    )
