"""Models and devices small or round enough to compute by hand."""

from dataclasses import replace

from engine.model.spec import LayerSpec, ModelSpec, NormSpec
from engine.simulation.devices import DeviceModel

# One layer of 8 x 8 products: q, k, v, output and two of the MLP, 6 * 64 = 384 weights; a head of 10 * 8 = 80.
TINY = ModelSpec(
    architecture="Tiny",
    vocab_size=10,
    hidden_size=8,
    intermediate_size=8,
    num_query_heads=2,
    num_kv_heads=2,
    head_dim=4,
    layers=(LayerSpec(rope=None),),
    ropes=(),
    norm=NormSpec("layer", 1e-5),
    max_model_len=100,
    activation="relu",
    gated_mlp=False,
    attention_scale=0.5,
    tied_embeddings=True,
)

# A byte a second and a FLOP a second: seconds are the numbers of bytes or FLOP.
UNIT = DeviceModel("unit", 10**9, 1.0, {"float16": 1e9}, 1.0, 1.0, 1.0, 1.0, kernel_s=0.0, step_s=0.0)


def perfect(device: DeviceModel) -> DeviceModel:
    """The device, reaching its peaks and losing no time between kernels and steps."""
    return replace(
        device, bytes_efficiency=1.0, flop_efficiency=1.0, attention_bytes_efficiency=1.0,
        attention_flop_efficiency=1.0, kernel_s=0.0, step_s=0.0,
    )  # fmt: skip
