"""Capacity planning: how many KV blocks fit beside the weights, decided from shapes before anything is loaded."""

import math
from dataclasses import dataclass
from pathlib import Path

import torch

from engine.config import KVCacheConfig
from engine.errors import ConfigError
from engine.kv_cache.tensors import kv_bytes_per_token
from engine.model.assemble import LOADING_THREADS
from engine.model.description import ModelDescription
from engine.model.dtypes import Dtypes
from engine.model.spec import ModelSpec, tensor_shapes

_MiB = 2**20
RUNTIME_BYTES = 256 * _MiB   # allocator slack, scratch space of the kernels, Python objects of the requests
_CGROUP_ROOT = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Where the memory goes once the model is loaded; `working_bytes` is what a step needs beside weights and pool."""

    weight_bytes: int
    working_bytes: int
    kv_bytes_per_token: int
    block_size: int
    num_blocks: int
    budget_bytes: int

    @property
    def capacity_tokens(self) -> int:
        return self.num_blocks * self.block_size

    @property
    def kv_bytes(self) -> int:
        return self.capacity_tokens * self.kv_bytes_per_token

    def __str__(self) -> str:
        return (
            f"weights {mib(self.weight_bytes)} + working memory {mib(self.working_bytes)} + KV cache "
            f"{mib(self.kv_bytes)} ({self.capacity_tokens} tokens) of {mib(self.budget_bytes)}"
        )


def plan_memory(
    description: ModelDescription,
    kv_cache: KVCacheConfig,
    *,
    block_size: int,
    max_num_batched_tokens: int,
    max_num_seqs: int,
    free_bytes: int,
    max_kv_bytes: int | None = None,
) -> MemoryPlan:
    """Blocks for all the memory allowed, or for `kv_cache.capacity_tokens`, and never more than requests can fill.

    `max_kv_bytes` bounds the pool where the configuration leaves its capacity open.

    Raises ConfigError with the numbers if the model does not fit, or not with the context or capacity asked for.
    """
    spec, dtypes, on_cpu = description.spec, description.dtypes, description.device.type == "cpu"
    budget_bytes = int(free_bytes * kv_cache.memory_fraction)
    weights = weight_bytes(spec, dtypes, description.max_model_len, on_cpu)
    step = activation_bytes(spec, dtypes, max_num_batched_tokens, max_num_seqs)
    # Graphs keep a pool of their own, as large as the largest decode step.
    graphs = 0 if on_cpu else activation_bytes(spec, dtypes, max_num_seqs, max_num_seqs)
    working = step + graphs + RUNTIME_BYTES
    loading = loading_bytes(description) if on_cpu else 0    # a GPU's weights pass through the host's memory
    if weights + loading + RUNTIME_BYTES > budget_bytes:
        raise ConfigError(
            f"model: {description.resolved.name} does not fit: it needs weights {mib(weights)} + "
            f"{mib(loading + RUNTIME_BYTES)} while they are loaded, more than memory_fraction "
            f"{kv_cache.memory_fraction} of {mib(free_bytes)} free. "
            f"Free some memory, or choose a smaller model or dtype."
        )
    per_token = kv_bytes_per_token(spec, dtypes.kv_cache)
    affordable = (budget_bytes - weights - working) // (per_token * block_size)
    blocks_of_one = -(-description.max_model_len // block_size)
    useful = blocks_of_one * max_num_seqs
    if max_kv_bytes is not None:
        useful = min(useful, max_kv_bytes // (per_token * block_size))
    wanted = min(affordable, useful) if kv_cache.capacity_tokens is None else kv_cache.capacity_tokens // block_size
    plan = MemoryPlan(weights, working, per_token, block_size, max(wanted, 0), budget_bytes)
    if affordable < max(wanted, 1):
        least = MemoryPlan(weights, working, per_token, block_size, max(wanted, 1), budget_bytes)
        raise ConfigError(
            f"model: {description.resolved.name} does not fit: it needs {least}, which is "
            f"memory_fraction {kv_cache.memory_fraction} of {mib(free_bytes)} free. {_remedy(kv_cache, affordable)}"
        )
    if wanted < 1:
        raise ConfigError(f"kv_cache.capacity_tokens: {kv_cache.capacity_tokens} is less than a block of {block_size}")
    return plan


def weight_bytes(spec: ModelSpec, dtypes: Dtypes, max_model_len: int, on_cpu: bool) -> int:
    """An upper bound on what the loaded model occupies."""
    shapes = tensor_shapes(spec)
    tables = sum(math.prod(shapes.pop(name)) for name in ("embedding.weight", "positions.weight") if name in shapes)
    if on_cpu and spec.causal:
        shapes["lm_head.weight"] = (spec.vocab_size, spec.embedding_width)  # packed beside the table even if tied
    products = sum(product_bytes(shape, dtypes, on_cpu) for shape in shapes.values() if len(shape) == 2)
    vectors = sum(math.prod(shape) for shape in shapes.values() if len(shape) == 1)
    rope = sum(max_model_len * rope.rotary_dim for rope in spec.ropes if not rope.depends_on_length)
    return products + tables * dtypes.table.itemsize + 4 * (vectors + rope)


def product_bytes(shape: tuple[int, ...], dtypes: Dtypes, on_cpu: bool) -> int:
    """A weight of that shape as it is computed with, its scales included."""
    if not on_cpu:
        return math.prod(shape) * dtypes.activations.itemsize
    from kernels.cpu.linear import weight_bytes as packed_bytes

    rows, columns = shape
    return packed_bytes(rows, columns, dtypes.weights)


def loading_bytes(description: ModelDescription) -> int:
    """What is unpacked at one time while loading, beside the weights: all of it is free again before there is a pool.

    Weights are packed some rows at a time, which RUNTIME_BYTES covers. Rows of a Hugging Face folder are the file's own
    pages; those of other sources may be all of a tensor in float32, and the largest two are read at once.
    """
    if description.resolved.kind == "folder":
        return 0
    return LOADING_THREADS * 4 * max(math.prod(shape) for shape in tensor_shapes(description.spec).values())


def activation_bytes(spec: ModelSpec, dtypes: Dtypes, max_num_batched_tokens: int, max_num_seqs: int) -> int:
    """An upper bound on a step's tensors; logits exist for one row a sequence, with the sampler's copies of them."""
    rows = min(max_num_batched_tokens, max_num_seqs)
    return hidden_bytes(spec, dtypes, max_num_batched_tokens) + 4 * 4 * rows * spec.vocab_size


def hidden_bytes(spec: ModelSpec, dtypes: Dtypes, num_tokens: int) -> int:
    """An upper bound on the tensors between the embedding and the last layer."""
    mlp = spec.intermediate_size * (3 if spec.gated_mlp else 2)
    attention = spec.qkv_size + spec.query_size
    per_token = 4 * spec.hidden_size + max(mlp, attention)
    rope = sum(4 * 8 * rope.rotary_dim for rope in spec.ropes if rope.depends_on_length)
    return num_tokens * (per_token * dtypes.activations.itemsize + rope)


def free_memory_bytes(device: str) -> int:
    """What may still be allocated on `device`; on a CPU the container's limit counts as well as the machine's."""
    if device != "cpu":
        return int(torch.cuda.mem_get_info(device)[0])
    import psutil  # a GPU does without

    return min([int(psutil.virtual_memory().available), *_cgroup_free_bytes(_CGROUP_ROOT)])


def _cgroup_free_bytes(root: Path) -> list[int]:
    """What each memory limit above this process leaves, of cgroup version 2 or 1; file pages count as free."""
    free = []
    for folder, limit_file, usage_file in (
        *((folder, "memory.max", "memory.current") for folder in _own_cgroups(root)),
        (root / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        try:
            limit, usage = (int((folder / file).read_text()) for file in (limit_file, usage_file))
            statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):
            continue                      # no such group, or "max": no limit
        file_pages = sum(int(statistics.get(key, 0)) for key in ("inactive_file", "active_file"))
        free.append(max(limit - usage + file_pages, 0))
    return free


def _own_cgroups(root: Path) -> list[Path]:
    """The version 2 groups that hold this process, outermost first."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return [root]
    own = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), "")
    return [root, *(root / folder for folder in reversed([Path(own), *Path(own).parents]) if str(folder) != ".")]


def _remedy(kv_cache: KVCacheConfig, affordable: int) -> str:
    if kv_cache.capacity_tokens is not None and affordable > 0:
        return "Lower kv_cache.capacity_tokens."
    return "Free some memory, lower scheduler.max_num_batched_tokens, or choose a smaller model or dtype."


def mib(num_bytes: int) -> str:
    return f"{num_bytes / _MiB:.0f} MiB"
