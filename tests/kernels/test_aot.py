"""The compile gates: their parsers and bounds, on canned text."""

import json
import os
import subprocess
import zipfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from kernels.aot import compile as aot_compile
from kernels.aot import config, control_flow, figures, gates, launches, machine_code, models, selection, snapshot
from kernels.aot.figures import Figures
from kernels.aot.launches import Launch
from kernels.aot.machine_code import Instruction, Resources
from kernels.aot.wheels import fetch, unpack

SASS = """
        code for sm_90
                Function : _extend_kernel
        /*0000*/                   LDC R1, c[0x0][0x28] ;                   /* 0x00000a00ff017b82 */
        /*0010*/              @!P0 BRA 0x80 ;                               /* 0x0000000000000947 */
        /*0020*/                   LDGSTS.E.BYPASS.128 [R7], desc[UR8][R2.64], P1 ;
        /*0030*/                   LDGSTS.E [R9], desc[UR8][R4.64] ;
        /*0040*/                   HGMMA.64x64x16.F32.BF16 R24, gdesc[UR4], R24, !UPT ;
        /*0050*/                   MUFU.EX2 R3, R3 ;
        /*0060*/               @P2 BRA 0x20 ;                               /* 0xfffffffc00ec0947 */
        /*0070*/                   HGMMA.64x64x16.F32.BF16 R24, gdesc[UR4], R24 ;
        /*0080*/                   LDG.E.U16 R6, desc[UR8][R2.64] ;
        /*0090*/              @!P3 BRA 0x20 ;
        /*00a0*/                   STL [R1], R3 ;
        /*00b0*/                   BRA 0xb0;
"""
AMDGCN = """
\tglobal_load_dwordx4 v[2:5], v[0:1], off
\ts_cbranch_execz .LBB0_2
.LBB0_1:                                ; =>This Inner Loop Header: Depth=1
\tbuffer_load_dword v6, v7, s[4:7], 0 offen
\tv_mfma_f32_16x16x16_bf16 v[8:11], v[2:3], v[4:5], v[8:11]
\ts_cbranch_scc1 .LBB0_1
.LBB0_2:
\ts_endpgm
    .private_segment_fixed_size: 8
    .vgpr_count:     213
    .vgpr_spill_count: 2
"""
GOOD = Figures(128, 0, 0, 60_000, 900, 300, {"16": 8, "4": 2}, {"HGMMA": 16}, 2, wide_share=1.0)


def launch(kind="extend", arch="sm_90", key_cache="*bf16", **constants):
    sizes = {"ROWS": 128 if kind == "extend" else 16, "TILE": 64, "D": 128, "D0": 128, "D1": 0, "GROUP": 4} | constants
    signature = {"query": "*bf16", "key" if kind == "varlen" else "key_cache": key_cache}
    options = {"num_warps": 8 if kind == "extend" else 4}
    return Launch(arch, "m", SimpleNamespace(__name__=f"_{kind}_kernel"), signature, sizes, (), options)


def gates_missed(of, **changes):
    return [failure.split(":")[0] for failure in gates.failures(of, replace(GOOD, **changes))]


def test_sass_becomes_instructions_with_jumps():
    code = machine_code.parse_sass(SASS)
    assert [instruction.opcode.split(".")[0] for instruction in code] == [
        "LDC", "BRA", "LDGSTS", "LDGSTS", "HGMMA", "MUFU", "BRA", "HGMMA", "LDG", "BRA", "STL", "BRA"
    ]  # fmt: skip
    assert [instruction.jumps_to for instruction in code if instruction.opcode == "BRA"] == [8, 2, 2, 11]
    assert [instruction.ends for instruction in code] == [False] * 11 + [True]
    assert not machine_code.parse_sass("/*0000*/ BRA.U !UP0, 0x0 ;")[0].ends
    assert machine_code.load_widths(code) == {16: 1, 4: 1, 2: 1}
    assert machine_code.matrix_instructions(code) == {"HGMMA": 2}
    assert machine_code.nvidia_resources("Function f:\n  REG:96 STACK:16 SHARED:0", code) == Resources(96, 16, 1)


def test_main_loop_is_the_shortest_with_products():
    assert len(control_flow.main_loop(machine_code.parse_sass(SASS))) == 5
    assert control_flow.main_loop([Instruction("BRA", 0)]) == []


def test_code_behind_the_end_that_jumps_back_is_no_loop():
    """A wait that is not over at once goes on behind the last instruction: its way back closes no loop of its own."""
    product, branch, leave = Instruction("UTCHMMA"), Instruction, Instruction("EXIT", ends=True)
    code = [
        Instruction("S2R"), product, branch("BRA", 7), product, product, branch("BRA", 1), leave,
        branch("BRA", 7), branch("BRA", 3, ends=True),
    ]  # fmt: skip
    assert control_flow.main_loop(code) == [*code[1:6], *code[7:9]]  # not [3, 8], which is shorter
    inner = [*code[:4], branch("BRA", 3), *code[5:]]
    assert control_flow.main_loop(inner) == [product, branch("BRA", 3)]  # an inner loop is one


def test_amd_assembly_becomes_the_same_figures():
    code = machine_code.parse_amdgcn(AMDGCN)
    assert [instruction.jumps_to for instruction in code] == [None, 5, None, None, 2, None]
    assert [instruction.ends for instruction in code] == [False] * 5 + [True]
    assert machine_code.load_widths(code) == {16: 1, 4: 1}
    assert machine_code.matrix_instructions(control_flow.main_loop(code)) == {"MFMA": 1}
    assert machine_code.amd_resources(AMDGCN) == Resources(213, 8, 2)


def test_text_without_figures_is_refused():
    with pytest.raises(ValueError, match="no resource usage"):
        machine_code.nvidia_resources("cuobjdump fatal", [])
    with pytest.raises(ValueError, match="vgpr_count"):
        machine_code.amd_resources("")


@pytest.mark.parametrize(
    ("registers", "shared", "warps", "blocks"),
    [(128, 1024, 4, 4), (32, 70_000, 4, 3), (16, 0, 32, 2), (255, 0, 8, 1), (129, 0, 4, 3)],
)
def test_blocks_are_limited_by_registers_shared_memory_and_warps(registers, shared, warps, blocks):
    assert machine_code.blocks_per_multiprocessor(machine_code.LIMITS["sm_90"], registers, shared, warps) == blocks


def test_figures_of_the_loop():
    code = [Instruction("LDGSTS.E.BYPASS.128")] * 8 + [Instruction("HGMMA.64x64x16")] * 247 + [Instruction("BRA", 0)]
    found = figures.read(launch(), code, Resources(128, 0, 0), 1024)
    # 256 instructions, 8 warps on 4 schedulers; 4 · 128 · 64 · 128 FLOP at 4096 a cycle
    assert (found.loop_instructions, found.issue_over_mma, found.per_token_head) == (256, 0.5, None)
    assert found.wide_share == 1.0  # 8 loads of 16 bytes by 256 lanes; K and V: 64 keys of 128 channels, 2 bytes each
    decode = figures.read(launch("decode"), code, Resources(128, 0, 0), 1024)
    assert (decode.per_token_head, decode.wide_share) == (256 * 4 / 64, 0.5)  # half the lanes
    assert figures.read(launch("decode", key_cache="*fp8e4nv"), code, Resources(128, 0, 0), 1024).wide_share == 1.0
    assert figures.read(launch(D0=64, D1=32), code, Resources(128, 0, 0), 1024).wide_share == 1.333
    amd = figures.read(launch(arch="gfx942"), code, Resources(128, 0, 0), 1024)
    assert (amd.issue_over_mma, amd.per_token_head, amd.wide_share) == (None, None, None)


@pytest.mark.parametrize("untold", [{}, {"do_not_specialize": True}, {"do_not_specialize_on_alignment": True}])
@pytest.mark.parametrize(
    "value",
    [None, True, False, 0, 1, 15, 16, -16, 2**31 - 1, 2**31, 0.0, 1.0, 16.0, torch.zeros(9), torch.zeros(9)[1:],
     torch.zeros(9)[4:], torch.zeros(9, dtype=torch.float8_e4m3fn), torch.zeros(2, dtype=torch.int64)],
    ids=repr,
)  # fmt: skip
def test_arguments_are_specialised_as_the_launcher_does(value, untold):
    from triton._C.libtriton import native_specialize_impl
    from triton.backends.compiler import BaseBackend

    flags = {"do_not_specialize": False, "do_not_specialize_on_alignment": False} | untold
    kernel = SimpleNamespace(arg_names=["x"], params=[SimpleNamespace(name="x", is_constexpr=False, **flags)])
    found = launches._specialise("sm_90", "m", kernel, (value,), {}, 1)
    told = [not flag for flag in flags.values()]
    kind, key = native_specialize_impl(BaseBackend, value, False, *told)
    assert found.signature["x"] == kind
    assert found.divisible == ((0,) if key == "D" else ())
    assert found.constants == ({"x": key} if kind == "constexpr" else {})


def test_a_launch_is_called_the_same_in_every_selection(monkeypatch):
    """The quick run lacks the model that first made llama-3-8b's norm, and names the norm after it all the same."""

    def made(arch, model):
        return [replace(launch("rms_norm", arch), model=model.name), replace(launch(arch=arch), model=model.name)]

    def key(of):
        return f"{of.arch} {of.kind} {of.model if of.kind == 'extend' else ''}"

    monkeypatch.setattr(selection, "launches", made)
    monkeypatch.setattr(selection, "cache_key", key)
    whole, quick = selection.selected(quick=False), selection.selected(quick=True)
    assert whole["sm_90 rms_norm "].model == models.MODELS[0].name != "llama-3-8b"
    assert whole["sm_90 extend llama-3-8b"].model == "llama-3-8b"
    assert set(quick) < set(whole)
    assert all(quick[name].name == whole[name].name for name in quick)
    assert "sm_90 rms_norm " in quick


@pytest.mark.parametrize(
    ("of", "changes", "missed"),
    [
        (launch(), {}, []),
        (launch(), {"stack_bytes": 8}, [gates.SPILLS]),
        (launch(), {"spills": 1}, [gates.SPILLS]),
        (launch(), {"shared_bytes": (227 << 10) + 1}, [gates.SHARED]),
        (launch(arch="sm_80"), {"shared_bytes": 200 << 10, "matrix": {"HMMA": 1}}, [gates.SHARED]),
        (launch(), {"matrix": {"HGMMA": 8, "HMMA": 8}}, [gates.MATRIX]),
        (launch(), {"wide_share": 0.99}, [gates.WIDE_LOADS]),
        (launch(), {"wide_share": None}, [gates.MAIN_LOOP]),
        (launch(arch="gfx942"), {"matrix": {"MFMA": 1}, "wide_share": None}, []),
        (launch(arch="gfx942"), {"matrix": {}, "wide_share": None}, [gates.MATRIX]),
        (launch(), {"issue_over_mma": 0.86}, [gates.ISSUE]),
        (launch("decode"), {"matrix": {"HMMA": 1}, "per_token_head": 25.5}, [gates.PER_TOKEN]),
        (launch("rms_norm"), {"matrix": {}, "wide_share": None}, []),
    ],
)
def test_gates(of, changes, missed):
    assert gates_missed(of, **changes) == missed


def test_an_exemption_has_a_bound_of_its_own():
    softcap = launch(SOFTCAP=True)
    assert gates_missed(softcap, issue_over_mma=1.2) == []
    assert gates_missed(softcap, issue_over_mma=1.4) == [gates.ISSUE]
    assert gates_missed(launch(), issue_over_mma=1.2) == [gates.ISSUE]
    assert [e.bound for e in gates.exemptions_used(softcap, replace(GOOD, issue_over_mma=1.2))] == [1.35]
    assert gates.exemptions_used(softcap, replace(GOOD, issue_over_mma=0.8)) == []
    blackwell = launch(arch="sm_100", SOFTCAP=True)  # twice the bound
    assert gates_missed(blackwell, issue_over_mma=2.4, matrix={"UTCHMMA": 1}) == []
    assert gates_missed(blackwell, issue_over_mma=2.8, matrix={"UTCHMMA": 1}) == [gates.ISSUE]


def test_drift_is_growth_by_more_than_a_tenth():
    before = replace(GOOD, registers=100, instructions=1000)
    assert snapshot.drift(before, replace(before, registers=110, instructions=500)) == []
    assert snapshot.drift(before, replace(before, registers=111)) == ["drift: registers 100 -> 111"]
    assert snapshot.drift(replace(GOOD, shared_bytes=0), replace(GOOD, shared_bytes=16)) != []


def test_differences_name_what_is_new_and_what_is_gone():
    committed = snapshot.Snapshot("3", {"a": GOOD, "b": GOOD})
    grown = replace(GOOD, registers=200)
    assert snapshot.differences(committed, {"a": GOOD}, whole=False) == []
    assert [text.split(":")[0] for text in snapshot.differences(committed, {"a": grown, "c": GOOD}, whole=True)] == [
        "c", "b", "a"
    ]  # fmt: skip


def test_a_snapshot_comes_back_as_it_was_saved(tmp_path):
    kept = snapshot.Snapshot("3.7.1", {"sm_90 · m · decode": GOOD, "sm_90 · m · extend": GOOD})
    snapshot.save(kept, tmp_path / "snapshot.json")
    assert snapshot.load(tmp_path / "snapshot.json") == kept


def test_docs_show_the_snapshot():
    text = snapshot.DOCS.read_text(encoding="utf-8")
    assert snapshot.documented(text, snapshot.load()) == text, "run: python -m kernels.aot --docs"


def test_documents_without_markers_are_refused():
    with pytest.raises(ValueError, match="compiled figures"):
        snapshot.documented("no table here", snapshot.Snapshot("3", {}))


def test_cache_and_failures(tmp_path, monkeypatch):
    compiled, one, other = tmp_path / "compiled", launch(), launch("decode")

    def measure(of):
        with compiled.open("a") as file:
            file.write(f"{of.kind}\n")
        if of.kind == "decode":
            os.write(2, b"ptxas died\n")
            os._exit(3)
        return GOOD

    monkeypatch.setattr(aot_compile, "measure", measure)
    for _ in range(2):
        wanted = {"1": one, "2": other}
        found = {of.kind: outcome for of, outcome in aot_compile.compile_all(wanted, tmp_path / "cache", 2)}
        assert found["extend"] == GOOD
        assert found["decode"].startswith("exit code 3: ptxas died")
    assert sorted(compiled.read_text().split()) == ["decode", "decode", "extend"]  # a failure is tried again


def test_environment_of_the_compiler(tmp_path):
    environ = {"TRITON_INTERPRET": "1", "PYTHONPATH": "old", "HOME": "/h"}
    assert config.compiler_environment(environ=environ) == {"PYTHONPATH": "old", "HOME": "/h"}
    assert config.compiler_environment(tmp_path, environ=environ)["PYTHONPATH"] == f"{tmp_path}{os.pathsep}old"
    assert config.cache_directory({"CONVEYOR_CACHE": "/c", "XDG_CACHE_HOME": "/x"}) == Path("/c/aot")
    assert config.cache_directory({"XDG_CACHE_HOME": "/x"}) == Path("/x/conveyor/aot")


def test_an_unpacked_wheel_can_run_its_assembler(tmp_path):
    tool = "triton/backends/nvidia/bin/ptxas"
    with zipfile.ZipFile(tmp_path / "triton.whl", "w") as archive:
        archive.writestr(tool, "#!/bin/sh\n")
    unpack(tmp_path / "triton.whl", tmp_path / "unpacked")
    assert os.access(tmp_path / "unpacked" / tool, os.X_OK)


def test_a_wheel_is_fetched_once(tmp_path, monkeypatch):
    (tmp_path / "triton-3.6.0").mkdir()
    monkeypatch.setattr(subprocess, "run", None)
    assert fetch("3.6.0", tmp_path) == tmp_path / "triton-3.6.0"


def test_every_option_is_compiled_by_some_model():
    pairs = selection.every_pair()
    assert {arch for arch, _ in pairs} == set(models.ARCHITECTURES)
    assert {model.head_dim for _, model in pairs} >= {64, 80, 96, 128, 192, 256}
    for field in ("window", "softcap", "alibi", "sinks", "fp8_kv", "qk_norm", "interleaved", "varlen", "vocab"):
        assert any(getattr(model, field) for _, model in pairs), field
    assert {(arch, model.name) for arch, model in pairs} >= set(models.QUICK)
    assert models.is_quick("sm_90", "llama-3-8b", "sample") and models.is_quick("sm_80", "every option", "extend")
    assert not models.is_quick("sm_80", "llama-3-8b", "rope") and not models.is_quick("sm_80", "phi-2", "extend")


def test_snapshot_is_one_line_a_launch():
    lines = snapshot.PATH.read_text(encoding="utf-8").splitlines()
    assert len(lines) == 2 + len(json.loads(snapshot.PATH.read_text(encoding="utf-8"))["figures"])
