"""Compiles a decoder's CPU kernels and its file's, so that the first start need not: `python -m engine.precompile`.

numba keeps what it compiles beside the source, by processor; a second run finds everything there.
"""

import numpy as np

from engine.build import build_core
from engine.config import EngineConfig, prepare_process
from engine.request import GenerationRequest
from engine.sampling.params import SamplingParams
from kernels.cpu.dequantize import FORMATS, dequantize

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


def dequantise_nothing() -> None:
    for name in FORMATS:
        dequantize(np.zeros(0, np.uint8), name)


if __name__ == "__main__":
    prepare_process()
    dequantise_nothing()
    for dtype in _DTYPES:
        run_tiny_model(dtype)
