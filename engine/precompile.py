"""Compiles the CPU kernels of a decoder, so that the first start need not: `python -m engine.precompile`.

numba keeps what it compiles beside the source, by processor; a second run finds everything there.
"""

from engine.build import build_core
from engine.config import EngineConfig, prepare_process
from engine.request import GenerationRequest
from engine.sampling.params import SamplingParams

_DTYPES = ("float32", "float16", "bfloat16", "int8")
_SAMPLING = (
    SamplingParams(max_tokens=4, temperature=0.0),
    SamplingParams(max_tokens=4, top_k=5, top_p=0.9, min_p=0.01, repetition_penalty=1.1),
)


def run_tiny_model(dtype: str) -> None:
    """Some steps of every kind: prompts, decodes, replayed where the dtype allows it, greedy and drawn."""
    settings = {"model": "random:tiny", "device": "cpu", "dtype": dtype, "kv_cache": {"capacity_tokens": 1024}}
    core = build_core(EngineConfig.model_validate(settings))
    for index, sampling in enumerate(_SAMPLING):
        core.add_request(GenerationRequest(str(index), tuple(range(1, 120)), sampling))
    while core.has_work:
        core.step()
    core.close()


if __name__ == "__main__":
    prepare_process()
    for dtype in _DTYPES:
        run_tiny_model(dtype)
