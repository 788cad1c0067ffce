"""What is decided before anything is built: who may share K/V, and the memory of a policy's steps."""

import dataclasses

import pytest
import torch

from engine.build import build_policy, plan_engine, prefix_salt
from engine.config import EngineConfig, SchedulerConfig
from engine.device import device_defaults
from engine.model.capacity import plan_memory
from engine.model.spec import LayerSpec, ModelSpec, NormSpec, RopeSpec
from tests.helpers import generation
from tests.helpers_models import rand_config, save_checkpoint

SPEC = ModelSpec(
    architecture="Test",
    vocab_size=8,
    hidden_size=8,
    intermediate_size=8,
    num_query_heads=1,
    num_kv_heads=1,
    head_dim=8,
    layers=(LayerSpec(),),
    ropes=(RopeSpec(inv_freq=(1.0,)),),
    norm=NormSpec("rms", 1e-6),
    max_model_len=64,
    activation="silu",
    gated_mlp=True,
    attention_scale=1.0,
)
DYNAMIC = dataclasses.replace(SPEC, ropes=(RopeSpec((1.0,), original_length=4, ntk_base=10.0, ntk_factor=2.0),))


@pytest.mark.parametrize(
    ("spec", "lengths", "share"),
    [(SPEC, (3, 50), True), (DYNAMIC, (3, 4), True), (DYNAMIC, (4, 5), False), (DYNAMIC, (5, 6), False)],
)
def test_prompts_share_prefixes_only_if_they_rotate_alike(spec, lengths, share):
    first, second = (prefix_salt(spec, generation("a", [1] * length)) for length in lengths)
    assert (first == second) is share


def test_equal_lengths_share_beyond_the_original_length():
    assert prefix_salt(DYNAMIC, generation("a", [1] * 9)) == prefix_salt(DYNAMIC, generation("b", [2] * 9))


@pytest.mark.parametrize(
    ("scheduler", "expected"),
    [
        ({"max_num_batched_tokens": 100}, (100, 64)),
        ({"policy": "splitfuse", "token_budget": 100, "max_ragged_sequence_count": 7}, (100, 7)),
        ({"policy": "vllm_v0"}, (2560, 256)),
    ],
)
def test_memory_is_planned_for_the_steps_of_the_policy(scheduler, expected):
    policy, limits = build_policy(SchedulerConfig(**scheduler), device_defaults(torch.device("cpu")))
    assert limits is policy.limits
    assert (limits.max_num_batched_tokens, limits.max_num_seqs) == expected


@pytest.mark.parametrize(
    ("policy", "expected"), [("chunked", 512), ("vllm_v0", 2560), ("orca", 4096), ("static", 4096)]
)
def test_memory_is_planned_for_a_whole_prompt_where_the_policy_computes_it_in_one_step(
    policy, expected, tmp_path, monkeypatch
):
    save_checkpoint(tmp_path, rand_config(max_position_embeddings=4096))
    planned = []

    def noted(*args, **options):
        planned.append(options["max_num_batched_tokens"])
        return plan_memory(*args, **options)

    monkeypatch.setattr("engine.build.plan_memory", noted)
    plan_engine(EngineConfig(model=str(tmp_path), device="cpu", scheduler={"policy": policy}))
    assert planned == [expected]
