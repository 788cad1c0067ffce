"""ModelRunner: a StepPlan becomes tensors, logits, tokens. It never reads scheduler state.

plan ─ arrange → arrays ─ load → inputs on the device ─ forward → logits ─ sample → tokens ─ read back → StepResult
                                      ^                                       │
                                      └──── ids that only the device knows ───┘
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from engine.kv_cache.tensors import KVCacheTensors
from engine.model.decoder import Decoder
from engine.model.inputs import BatchInputs, StepInputs
from engine.outputs import TokenLogprobs
from engine.request import GenerationRequest
from engine.sampling.grammar.cache import Grammars
from engine.sampling.grammar.compiler import Grammar
from engine.sampling.grammar.spec import GrammarSpec
from engine.sampling.logprobs import prompt_logprobs
from engine.sampling.params import SamplingParams
from engine.sampling.penalties import PenaltyState, apply_penalties
from engine.sampling.sampler import Sampler
from engine.scheduling.plan import StepPlan, StepResult
from engine.step.arrays import StepArrays, arrange, pad_decode, pad_rows
from engine.step.buffers import InputBuffers
from engine.step.graphs import DecodeGraphs
from engine.step.submitted import Readback, Sampling, SubmittedStep
from engine.step.tapes import Tapes
from engine.step.token_table import Row, TokenTable

_MIN_SAMPLES = 1024


class ModelRunner:
    """Carries out plans on one device, in order. At most one step may be unresolved when the next is submitted.

    It keeps what it has been told of each request (TokenTable, penalty counts) and forgets it when a plan says so.
    With `graph_batch_sizes`, steps in which every request decodes one token run padded to one of these sizes; with
    `tape_row_counts`, on a CPU, all other steps run padded to one of those.
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
        graph_batch_sizes: Sequence[int] = (),
        tape_row_counts: Sequence[int] = (),
        grammars: Grammars | None = None,
    ) -> None:
        self._decoder = decoder
        self._kv = kv
        self._eos_token_ids = eos_token_ids
        self._vocab_size = vocab_size
        self._device = device
        self._clock = clock
        self._table = TokenTable(max_num_seqs, max_model_len, kv.block_size)
        self._max_blocks = self._table.block_ids.shape[1]
        self._penalties: dict[str, PenaltyState] = {}  # request_id -> counts, of requests that change their logits
        self._grammars = grammars
        self._sampler = Sampler()
        self._inputs = InputBuffers(device)
        # What the last step sampled, in its order. Graphs hold its address, so it never moves.
        self._sampled = torch.zeros(max(max_num_seqs, _MIN_SAMPLES), dtype=torch.int64, device=device)
        self._last: SubmittedStep | None = None
        self._graphs = DecodeGraphs(graph_batch_sizes, device)
        self._graph_inputs = InputBuffers(device)
        if graph_batch_sizes:
            self._graph_inputs.reserve(max(graph_batch_sizes), max(graph_batch_sizes), self._max_blocks)
        self._tapes = Tapes(tape_row_counts) if tape_row_counts else None
        self._tape_inputs = InputBuffers(device)
        self._max_entries = 2 * max_num_seqs               # each with its padding
        if tape_row_counts:
            self._tape_inputs.reserve(max(tape_row_counts), self._max_entries + 1, self._max_blocks)

    def execute(self, plan: StepPlan) -> StepResult:
        """`plan` from its beginning to its end."""
        return self.submit(plan).result()

    @torch.inference_mode()
    def submit(self, plan: StepPlan) -> SubmittedStep:
        """Queues the step on the device; tokens of the step before need not be known to the host."""
        begun_s = self._clock()
        self._take_in(plan)
        if not plan.num_scheduled_tokens:
            return self._submitted(None, {}, begun_s, begun_s, begun_s)
        arrays, rows, sampling = arrange(plan, self._table)
        prompt: dict[str, tuple[TokenLogprobs, ...]] = {}
        logits: Tensor | None = None
        batch_size = self._graph_batch_size(plan, rows)
        if batch_size is not None:
            self._graph_inputs.load(pad_decode(arrays, batch_size), self._max_blocks)
            prepared_s = self._clock()
            logits = self._graphs.replay(batch_size)[: len(rows)]
        else:
            num_rows = self._num_taped_rows(arrays)
            inputs = self._inputs.load(arrays) if num_rows is None else self._load_padded(arrays, num_rows)
            prepared_s = self._clock()
            hidden = self._hidden(inputs, num_rows)
            prompt = self._prompt_logprobs(plan, rows, arrays, hidden)
            if sampling:
                logits = self._decoder.logits(hidden.index_select(0, inputs.logits_indices))
        forwarded_s = self._clock()
        drawn = None if logits is None else self._sample([rows[i] for i in sampling], logits)
        return self._submitted(drawn, prompt, begun_s, prepared_s, forwarded_s)

    def _submitted(
        self, sampling: Sampling | None, prompt: dict[str, tuple[TokenLogprobs, ...]], begun_s: float,
        prepared_s: float, forwarded_s: float,
    ) -> SubmittedStep:  # fmt: skip
        times_s = {
            "prepare": prepared_s - begun_s,
            "forward": forwarded_s - prepared_s,
            "sample": self._clock() - forwarded_s,
        }
        self._last = SubmittedStep(self._table, self._penalties, sampling, prompt, times_s, self._clock)
        if sampling is not None and len(sampling.rows) > len(self._sampled):
            self._last.result()                                # more than may stay on the device: known before the next
        return self._last

    # --------------------------------------------------------------------------------------------------- warm up

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Run every kernel once, so that none is compiled while requests wait; record the graphs. Call it first."""
        requests = {
            "greedy": GenerationRequest("greedy", (0, 0), SamplingParams(max_tokens=2, temperature=0.0)),
            "sampled": GenerationRequest("sampled", (0, 0), SamplingParams(max_tokens=2, top_k=2, top_p=0.9)),
        }
        tables = dict.fromkeys(requests, (0,) * -(-3 // self._kv.block_size))  # block 0: whoever gets it overwrites it
        prefill = StepPlan(
            dict.fromkeys(requests, 2),
            dict.fromkeys(requests, 0),
            tables,
            sampling=tuple(requests),
            new={name: (request, request.prompt_token_ids) for name, request in requests.items()},
        )
        self.execute(prefill)
        for batch_size in reversed(self._graphs.batch_sizes):
            self._record(batch_size)
        if self._graphs.batch_sizes:
            self._graphs.replay(self._graphs.batch_sizes[0])   # on a CPU the first replay takes longer: it records
        decode = StepPlan(dict.fromkeys(requests, 1), dict.fromkeys(requests, 2), tables, sampling=tuple(requests))
        for plan in (decode, StepPlan({}, {}, {}, finished=tuple(requests))):
            self.execute(plan)
        for mask in (None, (0,)):                              # the kernel is another one where there is a bitmask
            sampling = SamplingParams(max_tokens=1, repetition_penalty=2.0, allowed_token_ids=mask)
            logits = torch.zeros(1, self._vocab_size, device=self._device)
            apply_penalties(logits, [PenaltyState(sampling, (0,), vocab_size=self._vocab_size)])

    @torch.inference_mode()
    def prepare(self) -> bool:
        """Record a size of step that has not occurred yet; False: none is left. For when there is no work."""
        batch_size = self._graphs.next_size
        if batch_size is not None:
            self._load_nobody(batch_size)
            self._graphs.prepare(batch_size)
            return True
        num_rows = None if self._tapes is None else self._tapes.next_size
        if self._tapes is None or num_rows is None:
            return False
        inputs = self._load_padded(StepArrays.of_nothing(self._max_blocks), num_rows)
        self._tapes.prepare(num_rows, partial(self._forward, inputs))
        return True

    def _load_nobody(self, batch_size: int) -> StepInputs:
        nobody = pad_decode(StepArrays.of_nothing(self._max_blocks), batch_size)
        return self._graph_inputs.load(nobody, self._max_blocks)

    def _record(self, batch_size: int) -> None:
        inputs = self._load_nobody(batch_size)
        self._graphs.record(batch_size, lambda: self._decoder.logits(self._forward(inputs)))

    def _graph_batch_size(self, plan: StepPlan, rows: Sequence[Row]) -> int | None:
        """The recording that does `plan`: all decode a token each, and nobody asks about the prompt."""
        if plan.padding or not len(plan.sampling) == len(rows) == plan.num_tokens:
            return None
        if any(row.generation.sampling.prompt_logprobs is not None for row in rows):
            return None
        return self._graphs.batch_size_for(len(rows))

    def _num_taped_rows(self, arrays: StepArrays) -> int | None:
        """The tape that does a step that no graph does."""
        if self._tapes is None or arrays.num_entries > self._max_entries:
            return None
        return self._tapes.size_for(len(arrays.input_ids))

    def _load_padded(self, arrays: StepArrays, num_rows: int) -> StepInputs:
        padded = pad_rows(arrays, num_rows, min(num_rows, self._max_entries) + 1)
        return self._tape_inputs.load(padded, self._max_blocks)

    # --------------------------------------------------------------------------------------------------- forward

    def _hidden(self, inputs: StepInputs, num_taped_rows: int | None) -> Tensor:
        """Of all rows, padding included; until the next step."""
        compute = partial(self._forward, inputs)
        if self._tapes is None:
            return compute()
        return self._tapes.once(compute) if num_taped_rows is None else self._tapes.run(num_taped_rows, compute)

    def _forward(self, inputs: StepInputs) -> Tensor:
        """Hidden states [num_tokens, hidden_size]."""
        batch: BatchInputs = replace(inputs.batch, input_ids=self._input_ids(inputs))
        return self._decoder.forward(batch, self._kv)

    def _input_ids(self, inputs: StepInputs) -> Tensor:
        """[num_tokens]: those the host knows, and those the last step has left on the device."""
        known, source = inputs.batch.input_ids, inputs.source
        if self._device.type == "cpu":
            from kernels.cpu.embedding import pick_ids

            return pick_ids(known, source, self._sampled)
        return torch.where(source >= 0, self._sampled.index_select(0, source.clamp(min=0)), known)

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
                    grammar=self._grammar(generation.sampling.grammar),
                )

    def _grammar(self, spec: GrammarSpec | None) -> Grammar | None:
        """EngineCore holds it as long as the request lives: nothing is compiled here."""
        return None if spec is None or self._grammars is None else self._grammars.get(spec)

    # ---------------------------------------------------------------------------------------------------- sample

    def _sample(self, rows: Sequence[Row], logits: Tensor) -> Sampling:
        """Draws a token for each of `rows`; `logits` [len(rows), vocab_size] are changed in place."""
        states = [self._penalties.get(row.request_id) for row in rows] if self._penalties else []
        if self._last is not None and not self._last.is_resolved and any(state is not None for state in states):
            self._last.result()                                # penalties and grammars live on the host
        with_logprobs = [i for i, row in enumerate(rows) if row.generation.sampling.logprobs is not None]
        raw = logits[with_logprobs] if with_logprobs else None             # a copy: penalties work in place
        if states:
            apply_penalties(logits, states)
        indices = np.fromiter([row.index for row in rows], np.int64, len(rows))
        positions = self._table.expect(indices)
        tokens = self._sampler.sample(logits, [row.generation for row in rows], positions)
        self._sampled[: len(rows)] = tokens[: len(self._sampled)].clamp(min=0)
        return Sampling(rows, indices, positions, Readback(tokens), with_logprobs, raw)

    def _prompt_logprobs(
        self, plan: StepPlan, rows: Sequence[Row], arrays: StepArrays, hidden: Tensor
    ) -> dict[str, tuple[TokenLogprobs, ...]]:
        found: dict[str, tuple[TokenLogprobs, ...]] = {}
        for i, row in enumerate(rows):
            generation = row.generation
            count = generation.sampling.prompt_logprobs
            if count is None:
                continue
            start = plan.start[generation.request_id]
            # The hidden state at position p predicts token p + 1; the prompt's last one predicts the first output.
            end = min(start + plan.num_scheduled_tokens[generation.request_id], len(generation.prompt_token_ids) - 1)
            if start < end:
                first = int(arrays.query_start_loc[i])
                found[generation.request_id] = prompt_logprobs(
                    hidden[first : first + end - start],
                    generation.prompt_token_ids[start + 1 : end + 1],
                    count,
                    self._decoder.logits,
                )
        return found
