"""An EngineCore around a real, tiny model in float32 on the CPU."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from engine.core import EngineCore
from engine.kv_cache.manager import KVCacheManager
from engine.kv_cache.tensors import KVCacheTensors
from engine.model.loader import LoadedModel
from engine.request import GenerationRequest
from engine.runner import ModelRunner
from engine.sampling.grammar.cache import Grammars
from engine.scheduling.base import Scheduler
from engine.scheduling.policies import policy_class
from engine.scheduling.policy import CPU_LIMITS
from engine.text.tokenizer import Tokenizer
from tests.engine.builders import LetterTokenizer
from tests.helpers import ManualClock

GRAPH_BATCH_SIZES = (1, 3, 8)


@dataclass(frozen=True)
class Schedule:
    budget: int
    block_size: int
    num_blocks: int
    max_num_seqs: int = 8
    as_on_gpu: bool = False                            # overlapped steps, and padded decode steps as graphs replay them
    policy: str = "chunked"
    parameters: Mapping[str, object] | None = None     # of the policy; default: chunked's, budget and max_num_seqs


def build(
    model: LoadedModel,
    schedule: Schedule,
    *,
    tokenizer: Tokenizer | None = None,
    eos_token_ids: frozenset[int] = frozenset(),
    grammars: Grammars | None = None,
) -> EngineCore:
    clock, kind = ManualClock(), policy_class(schedule.policy)
    chunked = {"max_num_batched_tokens": schedule.budget, "max_num_seqs": schedule.max_num_seqs}
    parameters = kind.Parameters.model_validate(chunked if schedule.parameters is None else schedule.parameters)
    kv = KVCacheTensors.allocate(model.spec, schedule.num_blocks, schedule.block_size, torch.float32, "cpu")
    for tensor in (*kv.keys, *kv.values):
        tensor.fill_(float("nan"))                     # nothing but what was written may ever be read
    runner = ModelRunner(
        model.decoder,
        kv,
        max_num_seqs=schedule.max_num_seqs,
        max_model_len=512,
        eos_token_ids=eos_token_ids,
        vocab_size=model.spec.vocab_size,
        device=torch.device("cpu"),
        clock=clock,
        graph_batch_sizes=GRAPH_BATCH_SIZES if schedule.as_on_gpu else (),
        grammars=grammars,
    )
    if schedule.as_on_gpu:
        runner.warm_up()
    return EngineCore(
        Scheduler(
            kind(parameters, CPU_LIMITS),
            KVCacheManager(schedule.num_blocks, schedule.block_size),
            max_model_len=512,
            clock=clock,
        ),
        runner,
        tokenizer or LetterTokenizer(),  # type: ignore[arg-type]
        model_name="tiny",
        vocab_size=model.spec.vocab_size,
        eos_token_ids=eos_token_ids,
        max_num_waiting=100,
        clock=clock,
        overlap=schedule.as_on_gpu,
        grammars=grammars,
        check_every_step=True,
    )


def serve(core: EngineCore, *requests: GenerationRequest) -> dict[str, list[int]]:
    for request in requests:
        core.add_request(request)
    tokens: dict[str, list[int]] = {request.request_id: [] for request in requests}
    while core.has_work:
        for output in core.step():
            tokens[output.request_id] += output.token_ids
    return tokens
