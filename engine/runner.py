"""ModelRunner: a StepPlan becomes tensors, logits, tokens. It never reads scheduler state."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from engine.kv_cache.tensors import KVCacheTensors
from engine.model.decoder import Decoder
from engine.model.inputs import BatchInputs
from engine.outputs import TokenLogprobs
from engine.request import GenerationRequest
from engine.sampling.logprobs import prompt_logprobs, token_logprobs
from engine.sampling.params import SamplingParams
from engine.sampling.penalties import PenaltyState, apply_penalties
from engine.sampling.sampler import NON_FINITE, Sampler
from engine.scheduling.plan import Done, StepPlan, StepResult
from engine.token_table import Row, TokenTable


@dataclass(frozen=True, slots=True)
class PreparedStep:
    """A plan as tensors, with the places of the rows that sample."""

    inputs: BatchInputs
    rows: list[Row]                    # requests in batch order
    first_token: np.ndarray            # int64 [num_requests + 1], the query_start_loc on the host
    sampling: list[int]                # places in `rows` that sample


class ModelRunner:
    """Carries out plans on one device.

    It keeps what it has been told of each request (TokenTable, penalty counts) and forgets it when a plan says so.
    """

    def __init__(
        self,
        decoder: Decoder,
        kv: KVCacheTensors,
        *,
        max_num_seqs: int,
        max_model_len: int,
        eos_token_ids: frozenset[int],
        vocab_size: int,
        device: torch.device,
        clock: Callable[[], float],
    ) -> None:
        self._decoder = decoder
        self._kv = kv
        self._eos_token_ids = eos_token_ids
        self._vocab_size = vocab_size
        self._device = device
        self._clock = clock
        self._table = TokenTable(max_num_seqs, max_model_len, kv.block_size)
        self._penalties: dict[str, PenaltyState] = {}  # request_id -> counts, of requests that change their logits
        self._sampler = Sampler()

    def submit(self, plan: StepPlan) -> Done:
        return Done(self.execute(plan))

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> StepResult:
        begun_s = self._clock()
        self._take_in(plan)
        if not plan.num_scheduled_tokens:
            return StepResult({})
        step = self._prepare(plan)
        prepared_s = self._clock()
        hidden = self._decoder.forward(step.inputs, self._kv)
        prompt = self._prompt_logprobs(plan, step, hidden)
        if not step.sampling:
            return StepResult({}, prompt_logprobs=prompt, times_s=self._times(begun_s, prepared_s, self._clock()))
        last_token = torch.from_numpy(step.first_token[1:][step.sampling] - 1).to(self._device)
        logits = self._decoder.logits(hidden.index_select(0, last_token))
        forwarded_s = self._clock()
        sampled, logprobs, errors = self._sample([step.rows[i] for i in step.sampling], logits)
        return StepResult(sampled, logprobs, prompt, errors, self._times(begun_s, prepared_s, forwarded_s))

    def warm_up(self) -> None:
        """Run every kernel once, so that none is compiled while requests wait. Writes to block 0: call it first."""
        requests = {
            "greedy": GenerationRequest("greedy", (0, 0), SamplingParams(max_tokens=2, temperature=0.0)),
            "sampled": GenerationRequest("sampled", (0, 0), SamplingParams(max_tokens=2, top_k=2, top_p=0.9)),
        }
        tables = dict.fromkeys(requests, (0,) * -(-3 // self._kv.block_size))
        prefill = StepPlan(
            dict.fromkeys(requests, 2),
            dict.fromkeys(requests, 0),
            tables,
            sampling=tuple(requests),
            new={name: (request, request.prompt_token_ids) for name, request in requests.items()},
        )
        decode = StepPlan(dict.fromkeys(requests, 1), dict.fromkeys(requests, 2), tables, sampling=tuple(requests))
        for plan in (prefill, decode, StepPlan({}, {}, {}, finished=tuple(requests))):
            self.execute(plan)

    # --------------------------------------------------------------------------------------------------- prepare

    def _take_in(self, plan: StepPlan) -> None:
        for request_id in plan.finished:
            self._table.remove(request_id)
            self._penalties.pop(request_id, None)
        for request_id, (generation, token_ids) in plan.new.items():
            self._table.add(generation, token_ids)
            if generation.sampling.changes_logits:
                num_prompt_tokens = len(generation.prompt_token_ids)
                self._penalties[request_id] = PenaltyState(
                    generation.sampling,
                    generation.prompt_token_ids,
                    token_ids[num_prompt_tokens:],
                    eos_token_ids=self._eos_token_ids,
                    vocab_size=self._vocab_size,
                )

    def _prepare(self, plan: StepPlan) -> PreparedStep:
        table = self._table
        rows = [table[request_id] for request_id in plan.num_scheduled_tokens]
        for row, block_table in zip(rows, plan.block_tables.values(), strict=True):
            table.set_block_table(row, block_table)
        num_requests = len(rows)
        indices = np.fromiter((row.index for row in rows), np.int64, num_requests)
        query_lens = np.fromiter(plan.num_scheduled_tokens.values(), np.int64, num_requests)
        starts = np.fromiter(plan.start.values(), np.int64, num_requests)
        first_token = np.zeros(num_requests + 1, np.int64)
        np.cumsum(query_lens, out=first_token[1:])

        row_of_token = np.repeat(indices, query_lens)                      # [num_tokens]
        positions = np.arange(first_token[-1]) + np.repeat(starts - first_token[:-1], query_lens)
        blocks = table.block_ids[row_of_token, positions // table.block_size].astype(np.int64)
        seq_lens = starts + query_lens
        max_blocks = -(-int(seq_lens.max()) // table.block_size)
        inputs = BatchInputs(
            input_ids=self._tensor(table.token_ids[row_of_token, positions], torch.int64),
            positions=self._tensor(positions, torch.int64),
            rope_lengths=self._tensor(np.maximum(table.num_prompt[row_of_token], positions + 1), torch.int64),
            query_start_loc=self._tensor(first_token, torch.int32),
            seq_lens=self._tensor(seq_lens, torch.int32),
            block_table=self._tensor(table.block_ids[indices, :max_blocks], torch.int32),
            slot_mapping=self._tensor(blocks * table.block_size + positions % table.block_size, torch.int64),
            max_query_len=int(query_lens.max()),
        )
        samples = frozenset(plan.sampling)
        sampling = [i for i, request_id in enumerate(plan.num_scheduled_tokens) if request_id in samples]
        return PreparedStep(inputs, rows, first_token, sampling)

    def _tensor(self, values: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(self._device, dtype, non_blocking=True)

    # ---------------------------------------------------------------------------------------------------- sample

    def _sample(
        self, rows: Sequence[Row], logits: torch.Tensor
    ) -> tuple[dict[str, int], dict[str, TokenLogprobs], dict[str, str]]:
        """Sampled tokens, their log probabilities and per-row errors, by request id. `logits` [len(rows), vocab]."""
        ids = [row.generation.request_id for row in rows]
        wants_logprobs = [i for i, row in enumerate(rows) if row.generation.sampling.logprobs is not None]
        raw = logits[wants_logprobs] if wants_logprobs else None           # a copy: penalties work in place
        apply_penalties(logits, [self._penalties.get(request_id) for request_id in ids])
        indices = np.fromiter((row.index for row in rows), np.int64, len(rows))
        tokens = self._sampler.sample(logits, [row.generation for row in rows], self._table.num_tokens[indices])
        sampled = {request_id: token for request_id, token in zip(ids, tokens, strict=True) if token is not None}
        self._table.append(indices, np.array([token or 0 for token in tokens], np.int32))
        for request_id in sampled.keys() & self._penalties.keys():
            self._penalties[request_id].append(sampled[request_id])
        logprobs: dict[str, TokenLogprobs] = {}
        if raw is not None:
            chosen = [tokens[i] or 0 for i in wants_logprobs]
            entries = token_logprobs(raw, chosen, [rows[i].generation.sampling.logprobs or 0 for i in wants_logprobs])
            logprobs = {ids[i]: entry for i, entry in zip(wants_logprobs, entries, strict=True) if ids[i] in sampled}
        return sampled, logprobs, {request_id: NON_FINITE for request_id in ids if request_id not in sampled}

    def _prompt_logprobs(
        self, plan: StepPlan, step: PreparedStep, hidden: torch.Tensor
    ) -> dict[str, tuple[TokenLogprobs, ...]]:
        found: dict[str, tuple[TokenLogprobs, ...]] = {}
        for i, row in enumerate(step.rows):
            generation = row.generation
            count = generation.sampling.prompt_logprobs
            if count is None:
                continue
            start = plan.start[generation.request_id]
            # The hidden state at position p predicts token p + 1; the prompt's last one predicts the first output.
            end = min(start + plan.num_scheduled_tokens[generation.request_id], len(generation.prompt_token_ids) - 1)
            if start < end:
                first = int(step.first_token[i])
                found[generation.request_id] = prompt_logprobs(
                    hidden[first : first + end - start],
                    generation.prompt_token_ids[start + 1 : end + 1],
                    count,
                    self._decoder.logits,
                )
        return found

    def _times(self, begun_s: float, prepared_s: float, forwarded_s: float) -> dict[str, float]:
        return {
            "prepare": prepared_s - begun_s,
            "forward": forwarded_s - prepared_s,
            "sample": self._clock() - forwarded_s,
        }
