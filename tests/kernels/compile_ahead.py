"""Compiles the Triton kernels as their host functions launch them, for GPUs that are not there.

Runs as a script, because a process that interprets Triton cannot compile it:
    python -m tests.kernels.compile_ahead ttir sm_90 '{"head_dim": 80}'   # front end only: types and shapes
    python -m tests.kernels.compile_ahead full sm_90 '{"window": 99}'     # to machine code: spills, shared memory

Host functions run on meta tensors; each launch is caught, and its arguments become the signature that the launcher
would specialise on.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler.compiler import make_backend
from triton.runtime.jit import JITFunction

from kernels.triton import (
    activation,
    apply_penalties,
    cache_blocks,
    configs,
    layer_norm,
    paged_attention,
    rms_norm,
    rope_and_cache_write,
    sample,
    varlen_attention,
)

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32), "sm_90": GPUTarget("cuda", 90, 32), "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}  # fmt: skip
SHARED_LIMIT = {"sm_80": 163 << 10, "sm_90": 227 << 10, "sm_100": 227 << 10, "gfx942": 64 << 10}
TYPES = {
    torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16", torch.int32: "i32", torch.int64: "i64",
    torch.float8_e4m3fn: "fp8e4nv", torch.uint8: "u8",
}  # fmt: skip


def tensor(*shape, dtype=torch.bfloat16):
    return torch.empty(*shape, dtype=dtype, device="meta")


def launch_everything(head_dim=128, page=64, group=4, fp8=False, alibi=False, sinks=False, **options):
    """Calls every host function that launches a kernel: paged attention for decode alone and for a mixed batch."""
    int32, int64, float32 = torch.int32, torch.int64, torch.float32
    cache_dtype = torch.float8_e4m3fn if fp8 else torch.bfloat16
    per_head = tensor(8 * group, dtype=float32)
    qkv = tensor(8, (group + 2) * 8, head_dim)
    query, key, value = qkv[:, : 8 * group], qkv[:, 8 * group : 8 * group + 8], qkv[:, 8 * group + 8 :]
    caches = tensor(9, page, 8, head_dim, dtype=cache_dtype), tensor(9, page, 8, head_dim, dtype=cache_dtype)
    batch = tensor(4, 64, dtype=int32), tensor(4, dtype=int32), tensor(5, dtype=int32)
    for longest in (1, 64):
        paged_attention.paged_attention(
            query, *caches, *batch, scale=0.1, max_query_len=longest, alibi_slopes=per_head if alibi else None,
            sinks=per_head if sinks else None, **options,
        )  # fmt: skip
    for causal in (True, False):
        varlen_attention.varlen_attention(
            query, key, value, batch[2], scale=0.1, max_query_len=64, causal=causal,
            sinks=per_head if sinks else None, **options,
        )  # fmt: skip
    cache_blocks.copy_blocks(*caches, tensor(3, 2, dtype=int64))
    weight = tensor(head_dim)
    for interleaved, rotary, norm in ((False, head_dim, None), (True, head_dim // 2, weight), (False, 0, weight)):
        rope_and_cache_write.rope_and_cache_write(
            query, key, value, tensor(99, rotary, dtype=float32) if rotary else None, tensor(8, dtype=int64), *caches,
            tensor(8, dtype=int64), q_norm_weight=norm, k_norm_weight=norm, interleaved=interleaved,
        )  # fmt: skip
    hidden, gain = tensor(8, 4096), tensor(4096)
    rms_norm.rms_norm(hidden, gain, 1e-6)
    rms_norm.add_rms_norm(hidden, hidden, gain, 1e-6, one_plus=True)
    layer_norm.layer_norm(hidden, gain, gain, 1e-6)
    activation.silu_and_mul(hidden)
    activation.gelu_and_mul(hidden, "tanh")
    activation.gelu_and_mul(hidden, "none")
    logits, starts, ids = tensor(8, 151936, dtype=float32), tensor(9, dtype=int32), tensor(99, dtype=int32)
    penalties = [tensor(8, dtype=float32) for _ in range(3)]
    lists = (starts, ids, ids, *penalties, starts, ids, tensor(99, dtype=float32), starts, ids)
    apply_penalties.apply_penalties(logits, *lists)
    apply_penalties.apply_penalties(logits, *lists, tensor(8, 4748, dtype=int32))
    rows = [tensor(8, dtype=kind) for kind in (float32, int32, float32, float32, int64, int32, int32)]
    sample.sample(logits, *rows)


def specialise(kernel, args, kwargs):
    """(source, compiler options) of one launch."""
    values = dict(zip(kernel.arg_names, args, strict=False)) | kwargs
    signature, constants, attributes = {}, {}, {}
    for i, parameter in enumerate(kernel.params):
        value = values.pop(parameter.name)
        if isinstance(value, torch.Tensor):
            signature[parameter.name] = "*" + TYPES[value.dtype]
            if not parameter.do_not_specialize_on_alignment:
                attributes[(i,)] = [["tt.divisibility", 16]]
        elif parameter.is_constexpr or value is None or (value == 1 and not parameter.do_not_specialize):
            signature[parameter.name], constants[parameter.name] = "constexpr", value
        else:
            signature[parameter.name] = "fp32" if isinstance(value, float) else "i32"
            if isinstance(value, int) and value % 16 == 0 and not parameter.do_not_specialize:
                attributes[(i,)] = [["tt.divisibility", 16]]
    return ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attributes), values


def front_end(source, target, options):
    """Runs the type checks alone."""
    backend = make_backend(target)
    parsed, context = backend.parse_options(options), triton._C.libtriton.ir.context()
    triton._C.libtriton.ir.load_dialects(context)
    backend.load_dialects(context)
    codegen = backend.get_codegen_implementation(parsed)
    source.make_ir(target, parsed, codegen, backend.get_module_map(), context)


def spilled_bytes(compiled, target):
    if target.backend == "hip":
        return 4 * int(re.search(r"\.vgpr_spill_count:\s+(\d+)", compiled.asm["amdgcn"])[1])
    tool = Path(triton.backends.nvidia.__file__).parent / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        usage = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    return int(re.search(r"STACK:(\d+)", usage)[1])


def main(mode, arch, *variants):
    launches = []
    JITFunction.run = lambda kernel, *args, grid, warmup, **kwargs: launches.append((kernel, args, kwargs))
    configs.architecture = lambda device: arch
    for options in variants:
        launch_everything(**json.loads(options))
    for kernel, args, kwargs in launches:
        source, compiler_options = specialise(kernel, args, kwargs)
        found = {"kernel": kernel.__name__}
        if mode == "ttir":
            front_end(source, TARGETS[arch], compiler_options)
        else:
            compiled = triton.compile(source, target=TARGETS[arch], options=compiler_options)
            found["spilled_bytes"] = spilled_bytes(compiled, TARGETS[arch])
            found["shared_room_bytes"] = SHARED_LIMIT[arch] - compiled.metadata.shared
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
