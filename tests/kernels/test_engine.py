"""The whole engine with the Triton kernels in the interpreter: the tokens of the CPU backend, as a GPU would step."""

import pytest

from engine.request import GenerationRequest
from engine.sampling.params import SamplingParams
from tests.engine.model.driver import load
from tests.engine.model_core import Schedule, build, serve
from tests.helpers import generation
from tests.helpers_models import FAMILIES, prompt, save_checkpoint
from tests.helpers_triton import Triton

SCHEDULE = Schedule(budget=16, block_size=16, num_blocks=16, as_on_gpu=True)


def requests() -> list[GenerationRequest]:
    penalised = SamplingParams(max_tokens=4, temperature=0.8, top_k=20, top_p=0.9, seed=3, repetition_penalty=1.4)
    return [
        generation("greedy", prompt(21), 4),
        GenerationRequest("sampled", tuple(prompt(3, seed=1)), penalised),
    ]


@pytest.mark.parametrize(
    "family", ["gemma3", *(pytest.param(name, marks=pytest.mark.exhaustive) for name in FAMILIES if name != "gemma3")]
)
def test_tokens_are_those_of_the_cpu_backend(family, tmp_path):
    save_checkpoint(tmp_path, FAMILIES[family])
    model = load(tmp_path)
    expected = serve(build(model, SCHEDULE), *requests())
    with Triton() as triton:
        assert serve(build(model, SCHEDULE), *requests()) == expected
    assert {"paged_attention", "rope_and_cache_write", "sample", "apply_penalties"} <= triton.ops

