"""What can run on a GPU: our Triton kernels, the products of cuBLAS, and the small torch ops named here. No GPU needed.

Two halves. Our code asks one question of a device, whether it is the CPU, so the meta device takes the GPU's side of
each: a dispatch mode sees every op that the decoder issues, for every family. And each op of ours, sent to the
implementation that is registered for CUDA tensors, launches kernels and computes nothing by itself.
"""

import importlib

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bench.kernel_checks import checks
from engine.config import EngineConfig
from engine.kv_cache.tensors import KVCacheTensors
from engine.model.hub import ResolvedModel
from engine.model.inputs import BatchInputs
from engine.model.loader import load_model
from kernels.ops import IMPLEMENTATIONS
from tests.helpers_models import FAMILIES, save_checkpoint

GEMMS = {"mm", "addmm", "linear"}                                # F.linear: cuBLAS
LOOKUPS = {"embedding", "index_select"}
VIEWS = {"alias", "detach", "slice", "split", "split_with_sizes", "t", "transpose", "unsqueeze", "view", "_unsafe_view"}
# Casts; sums and scales of activations; a plain MLP's activation; a softcap of the logits.
ELEMENTWISE = {"to", "_to_copy", "add", "add_", "mul", "div", "tanh", "relu", "gelu", "silu"}
ALLOCATIONS = {"empty", "empty_like", "new_empty"}
COPIES = {"swap_blocks": {"copy_"}}                              # a copy engine's work, beside the kernels
CHECKS = {check.build().op: check for check in checks(torch.device("cpu"))}


class Seen(TorchDispatchMode):
    """Names of the ops issued inside, without their namespace where it is torch's own."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.add(func.name().removeprefix("aten::").split(".")[0])
        return func(*args, **(kwargs or {}))


def meta_batch(query_lens):
    def empty(*shape, dtype=torch.int64):
        return torch.empty(*shape, dtype=dtype, device="meta")

    num_tokens, num_requests = sum(query_lens), len(query_lens)
    return BatchInputs(
        input_ids=empty(num_tokens),
        positions=empty(num_tokens),
        rope_lengths=empty(num_tokens),
        query_start_loc=empty(num_requests + 1, dtype=torch.int32),
        seq_lens=empty(num_requests, dtype=torch.int32),
        block_table=empty(num_requests, 4, dtype=torch.int32),
        slot_mapping=empty(num_tokens),
        max_query_len=max(query_lens),
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_a_forward_pass_issues_our_ops_products_and_little_else(family, tmp_path):
    save_checkpoint(tmp_path, FAMILIES[family])
    config = EngineConfig(model=str(tmp_path), dtype="bfloat16")
    model = load_model(ResolvedModel("folder", tmp_path, family), config, "meta")
    kv = KVCacheTensors.allocate(model.spec, 8, 16, torch.bfloat16, "meta")
    batch = meta_batch([1, 7])
    with torch.inference_mode(), Seen() as seen:
        hidden = model.decoder.forward(batch, kv)
        logits = model.decoder.logits(hidden.index_select(0, batch.seq_lens))
    assert logits.shape == (2, model.spec.vocab_size)
    ours = {f"conveyor::{op}" for op in IMPLEMENTATIONS}
    assert {"conveyor::paged_attention", "conveyor::rope_and_cache_write"} <= seen.names
    assert seen.names - ours - GEMMS - LOOKUPS - VIEWS - ELEMENTWISE == set()


@pytest.mark.parametrize("op", IMPLEMENTATIONS)
def test_an_op_on_cuda_tensors_launches_kernels_and_computes_nothing_itself(op, monkeypatch):
    launches = []

    class Kernel:
        def __getitem__(self, grid):
            return lambda *args, **options: launches.append(grid)

    module = importlib.import_module(f"kernels.triton.{IMPLEMENTATIONS[op][1]}")
    for name, value in list(vars(module).items()):
        if type(value).__name__ in ("JITFunction", "InterpretedFunction"):
            monkeypatch.setattr(module, name, Kernel())
    overload = getattr(torch.ops.conveyor, op).default
    arguments = CHECKS[op].build().arguments
    positional = [arguments[a.name] for a in overload._schema.arguments if not a.kwarg_only and a.name in arguments]
    keyword = {a.name: arguments[a.name] for a in overload._schema.arguments if a.kwarg_only and a.name in arguments}
    with Seen() as seen:
        overload.redispatch(torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA), *positional, **keyword)
    assert seen.names - VIEWS - ALLOCATIONS == COPIES.get(op, set())
    assert bool(launches) == (op not in COPIES)
