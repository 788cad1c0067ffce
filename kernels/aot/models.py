"""The model shapes that the gates compile: between them, every line of configs.py and every option of a kernel."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What of a model decides how its kernels are compiled."""

    name: str
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    intermediate: int = 0  # 0: no gated MLP
    rotary: int | None = None  # None: the whole head
    interleaved: bool = False
    qk_norm: bool = False
    norm: Literal["rms", "rms_one_plus", "layer"] = "rms"
    activation: Literal["silu", "gelu_tanh", "gelu"] = "silu"
    page: int = 64
    context: int = 8192
    window: int = 0
    softcap: float = 0.0
    alibi: bool = False
    sinks: bool = False
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    fp8_kv: bool = False
    varlen: Literal["", "decoder", "encoder"] = ""  # attention without a cache too: causal, or not
    vocab: int = 0  # 0: `sample` is compiled for another model


MODELS = (
    ModelShape("qwen2.5-0.5b", 14, 2, 64, 896, 4864, page=16, varlen="decoder"),
    ModelShape("gpt-oss-20b", 64, 8, 64, 2880, window=128, sinks=True),
    ModelShape("bert-base", 12, 12, 64, 768, rotary=0, norm="layer", dtype="float16", varlen="encoder"),
    ModelShape("phi-2", 32, 32, 80, 2560, rotary=32, norm="layer", varlen="decoder"),
    ModelShape("phi-3-mini", 32, 32, 96, 3072, 8192, window=2047, varlen="decoder"),
    ModelShape("llama-3-8b", 32, 8, 128, 4096, 14336, varlen="decoder", vocab=128256),
    ModelShape("llama-3-8b fp8 kv", 32, 8, 128, 4096, fp8_kv=True),
    ModelShape("mistral-7b", 32, 8, 128, 4096, 14336, page=16, window=4096),
    ModelShape("opt-13b", 40, 40, 128, 5120, rotary=0, norm="layer", dtype="float16"),
    ModelShape("bloom-7b", 32, 32, 128, 4096, rotary=0, norm="layer", page=1, alibi=True),
    ModelShape("glm-4-9b", 32, 2, 128, 4096, 13696, rotary=64, interleaved=True),
    ModelShape("qwen3-8b", 32, 8, 128, 4096, 12288, qk_norm=True),
    ModelShape("64 heads on 2", 64, 2, 128, 8192),
    ModelShape("head_dim 192", 32, 8, 192, 6144, varlen="decoder"),
    ModelShape("gemma-2-9b", 16, 8, 256, 3584, 14336, norm="rms_one_plus", activation="gelu_tanh",
               window=4096, softcap=50.0, varlen="decoder"),
    ModelShape("gemma-3-1b", 4, 1, 256, 1152, 6912, qk_norm=True, norm="rms_one_plus", activation="gelu_tanh"),
    ModelShape("every option", 40, 8, 96, 3840, 3840, rotary=48, interleaved=True, qk_norm=True, norm="layer",
               activation="gelu", page=16, window=100, softcap=5.0, alibi=True, sinks=True, context=512,
               varlen="encoder"),
    ModelShape("float32", 32, 8, 64, 2048, 8192, activation="gelu", dtype="float32"),
)  # fmt: skip

ARCHITECTURES = ("sm_80", "sm_90", "sm_100", "gfx942")
NO_FP8_KV = ("sm_80", "gfx942")  # no e4m3fn in hardware: Ampere has none, MI300 another form of it

# What `make test` compiles: each kernel and branch on one architecture, the hardest two on the others.
_HARD = ("extend", "decode")
QUICK: dict[tuple[str, str], tuple[str, ...]] = {  # (architecture, model) -> kernels; (): all
    ("sm_90", "llama-3-8b"): (),
    ("sm_90", "every option"): (),
    ("sm_90", "llama-3-8b fp8 kv"): _HARD,
    ("sm_90", "gemma-2-9b"): ("activation", "rms_norm"),
    **{(arch, model): _HARD for arch in ("sm_80", "sm_100", "gfx942") for model in ("llama-3-8b", "every option")},
}


def is_quick(arch: str, model: str, kind: str) -> bool:
    """Whether the quick run compiles this kernel of this model."""
    kinds = QUICK.get((arch, model))
    return kinds is not None and (not kinds or kind in kinds)
