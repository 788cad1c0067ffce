"""Memory plans: what fits, what is refused, and that the estimates bound what loading really takes."""

import dataclasses
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from engine.config import EngineConfig, KVCacheConfig
from engine.errors import ConfigError
from engine.kv_cache.tensors import KVCacheTensors, kv_bytes_per_token
from engine.model import capacity
from engine.model.capacity import plan_memory, weight_bytes
from engine.model.description import describe_model
from engine.model.hub import ResolvedModel
from engine.model.loader import load_described
from tests.helpers_models import FAMILIES, rand_config, save_checkpoint

GiB = 2**30


def described(folder, dtype="float32"):
    resolved = ResolvedModel("folder", folder, "tiny")
    return describe_model(resolved, EngineConfig(model=str(folder), dtype=dtype), "cpu")


@pytest.fixture(scope="module")
def rand(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rand")
    save_checkpoint(folder, rand_config())
    return described(folder)


def plan(description, free_bytes=4 * GiB, **kv_cache):
    return plan_memory(
        description, KVCacheConfig(**kv_cache), block_size=16, max_num_batched_tokens=256, max_num_seqs=8,
        free_bytes=free_bytes,
    )  # fmt: skip


def test_keys_and_values_take_what_is_planned(rand):
    kv = KVCacheTensors.allocate(rand.spec, num_blocks=3, block_size=16, dtype=torch.float32, device="cpu")
    assert sum(tensor.nbytes for tensor in (*kv.keys, *kv.values)) == 48 * kv_bytes_per_token(rand.spec, torch.float32)
    assert kv.block_size == 16
    assert not any(tensor.any() for tensor in (*kv.keys, *kv.values))


def test_no_more_blocks_than_the_requests_can_fill(rand):
    assert plan(rand).capacity_tokens == 8 * 512


def test_blocks_fill_the_memory_allowed(rand):
    tight = plan(rand).budget_bytes - plan(rand).kv_bytes  # with the default fraction, more than the least
    needed = plan(rand).weight_bytes + plan(rand).working_bytes
    made = plan(rand, free_bytes=int((needed + 100 * 16 * 1024 + 1) / 0.9) + 1)
    assert made.num_blocks == 100
    assert made.weight_bytes + made.working_bytes + made.kv_bytes <= made.budget_bytes < tight


def test_on_a_gpu_the_graphs_memory_is_planned_beside_that_of_a_step(rand):
    step, graphs = (capacity.activation_bytes(rand.spec, rand.dtypes, rows, 8) for rows in (256, 8))
    on_gpu = plan(dataclasses.replace(rand, device=torch.device("cuda")))
    assert on_gpu.working_bytes == step + graphs + capacity.RUNTIME_BYTES


def test_a_capacity_asked_for_is_given(rand):
    assert plan(rand, capacity_tokens=1000).num_blocks == 62


def test_a_capacity_that_does_not_fit_is_refused_with_the_numbers(rand):
    with pytest.raises(ConfigError, match=r"tiny does not fit.*\(4000000 tokens\).*Lower kv_cache\.capacity_tokens"):
        plan(rand, capacity_tokens=4_000_000)


def test_a_capacity_below_one_block_is_refused(rand):
    with pytest.raises(ConfigError, match="less than a block of 16"):
        plan(rand, capacity_tokens=5)


def test_a_model_that_does_not_fit_is_refused(rand):
    with pytest.raises(ConfigError, match=r"tiny does not fit.*memory_fraction 0.9 of 100 MiB free"):
        plan(rand, free_bytes=100 * 2**20)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8"])
def test_weights_take_no_more_than_planned(tmp_path, name, dtype):
    save_checkpoint(tmp_path, FAMILIES[name])
    description = described(tmp_path, dtype)
    planned = weight_bytes(description.spec, description.dtypes, 64, on_cpu=True)
    taken = load_described(description, show_progress=False).decoder.nbytes
    assert 0.7 * planned <= taken <= planned


def test_loading_takes_no_more_than_planned(tmp_path):
    save_checkpoint(tmp_path, rand_config(vocab_size=100_000, hidden_size=256))
    load_described(described(tmp_path, "bfloat16"), show_progress=False)          # what is needed once is there then
    description = described(tmp_path, "bfloat16")
    before = own_bytes()
    with ThreadPoolExecutor(1) as threads:
        loading = threads.submit(load_described, description, show_progress=False)
        peak = before
        while not loading.done():
            peak = max(peak, own_bytes())
            time.sleep(0.001)
    beside = peak - before - loading.result().decoder.nbytes
    table = 4 * 100_000 * 256                                 # in float32
    assert capacity.loading_bytes(description) == 0 and beside < min(capacity.RUNTIME_BYTES, table / 2)


def own_bytes():
    """Memory of this process that is no file's."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * int(status["RssAnon"].split()[0])


def test_what_loading_needs_is_free_again_before_there_is_a_pool(rand):
    whole = dataclasses.replace(rand, resolved=dataclasses.replace(rand.resolved, kind="random"))
    assert capacity.loading_bytes(whole) > capacity.loading_bytes(rand)
    assert plan(whole) == plan(rand)


def test_a_model_that_cannot_be_loaded_is_refused(rand, monkeypatch):
    monkeypatch.setattr(capacity, "loading_bytes", lambda description: 4 * GiB)
    with pytest.raises(ConfigError, match=r"weights 1 MiB \+ 4352 MiB while they are loaded"):
        plan(rand)


def group(folder, limit, usage, file_pages=0):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{usage}\n")
    (folder / "memory.stat").write_text(f"anon 5\ninactive_file {file_pages}\nactive_file 1\n")


def test_a_containers_limit_counts_and_its_file_pages_do_not(tmp_path, monkeypatch):
    monkeypatch.setattr(capacity, "_CGROUP_ROOT", tmp_path)
    unlimited = capacity.free_memory_bytes("cpu")
    group(tmp_path, "max", 1000)
    assert capacity.free_memory_bytes("cpu") > unlimited / 2
    group(tmp_path, 5000, 3000, file_pages=499)
    assert capacity.free_memory_bytes("cpu") == 2500
    group(tmp_path, 5000, 9000)
    assert capacity.free_memory_bytes("cpu") == 0
