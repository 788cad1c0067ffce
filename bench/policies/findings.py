"""What a sweep says: ratios like for like, what was reported elsewhere, and why the two differ, from the numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.policies.runs import PolicyRun

REPORTED_CAP = 1536
REPORTED_STATIC_TOKENS_PER_S = 81.0        # prompts and outputs together, Hugging Face Pipelines at that cap
# policy -> (system, times that baseline), as Anyscale reported in 2023: OPT-13B, one A100-40GB, 512 tokens in
REPORTED: Mapping[str, tuple[str, float]] = {
    "packed_static": ("FasterTransformer", 4.0),
    "tgi": ("text-generation-inference", 8.0),
    "ray_serve_2023": ("the batcher on Ray Serve", 8.0),
    "vllm_v0": ("vLLM", 23.0),
}
EXPECTED_ORDER = (("static",), ("packed_static",), ("orca", "tgi"), ("vllm_v0",), ("chunked",))


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What explanations need to know of a simulated device and model."""

    weight_bytes: int
    bytes_per_s: float                     # that the simulator reads at: peak × efficiency
    kv_capacity_tokens: int
    max_model_len: int


@dataclass(frozen=True, slots=True)
class Split:
    """A reported ratio taken apart: reported = like_for_like × implementation."""

    policy: str
    system: str
    like_for_like: float                   # one engine, equal kernels
    with_factor: float                     # the same engine against the eager baseline that was reported
    reported: float

    @property
    def implementation(self) -> float:
        """How much faster than the baseline's the reported system's kernels and host were, policies apart."""
        return self.reported / self.like_for_like

    @property
    def reached(self) -> float:
        """The reported system's throughput as a share of what its policy reaches on our roofline."""
        return self.reported / self.with_factor


def at_cap(runs: Sequence[PolicyRun], cap: int) -> dict[str, PolicyRun]:
    """Label -> its first run of the burst workload at `cap`."""
    found: dict[str, PolicyRun] = {}
    for run in runs:
        if run.workload == "burst" and run.cap == cap:
            found.setdefault(run.case.label, run)
    return found


def ratio(runs: Mapping[str, PolicyRun], label: str, against: str = "static") -> float:
    """Of total tokens/s, as the original harness counts."""
    return runs[label].summary.total_tokens_per_s / runs[against].summary.total_tokens_per_s


def baseline_factor(runs: Sequence[PolicyRun]) -> float:
    """How much slower the reported eager baseline was than `static` on this engine."""
    return at_cap(runs, REPORTED_CAP)["static"].summary.total_tokens_per_s / REPORTED_STATIC_TOKENS_PER_S


def splits(runs: Sequence[PolicyRun]) -> list[Split]:
    """Of every reported ratio whose policy was run; none without `static` at the cap that was reported."""
    at = at_cap(runs, REPORTED_CAP)
    if "static" not in at:
        return []
    factor = baseline_factor(runs)
    return [
        Split(policy, system, ratio(at, policy), ratio(at, policy) * factor, reported)
        for policy, (system, reported) in REPORTED.items()
        if policy in at
    ]


def order_text(runs: Sequence[PolicyRun], cap: int) -> str:
    """Whether the order that the literature leads to expect holds at `cap`, with the figures."""
    at = at_cap(runs, cap)
    steps = [[name for name in names if name in at] for names in EXPECTED_ORDER]
    steps = [names for names in steps if names]
    figures = [[at[name].summary.total_tokens_per_s for name in names] for names in steps]
    holds = all(
        max(lower) < min(upper) or (names == ["chunked"] and max(lower) == min(upper))
        for lower, upper, names in zip(figures, figures[1:], steps[1:], strict=False)
    )
    told = " < ".join(
        "/".join(f"{name} {figure:,.0f}" for name, figure in zip(names, of_names, strict=True))
        for names, of_names in zip(steps, figures, strict=True)
    )
    if holds:
        return f"At cap {cap} the order holds: {told} tokens/s."
    return f"At cap {cap} the order does NOT hold: {told} tokens/s. {_why_not(at)}".rstrip()


def _why_not(at: Mapping[str, PolicyRun]) -> str:
    """Of the one exception that is known: reserving is cheap where outputs are short, and pausing is not."""
    if not {"orca", "vllm_v0"} <= at.keys() or ratio(at, "orca", "vllm_v0") <= 1:
        return ""
    orca, vllm = at["orca"].steps, at["vllm_v0"].steps
    return (
        f"orca is ahead of vllm_v0 where outputs are short: its reservations leave only {orca.kv_waste:.0%} of what it "
        f"holds empty (vllm_v0 {vllm.kv_waste:.0%}), and it computes prompts beside decodes, while vllm_v0's requests "
        f"wait for prompts of others for {vllm.paused_share:.0%} of their time."
    )


def explanations(runs: Sequence[PolicyRun], facts: DeviceFacts | None) -> list[str]:
    """One sentence a difference, each with the figures it follows from. None where a run or a fact is missing."""
    at = at_cap(runs, REPORTED_CAP)
    needed = {"static", "packed_static", "orca", "tgi", "vllm_v0", "chunked"}
    if facts is None or not needed <= at.keys():
        return []
    return [
        _of_static(at["static"], facts), _of_packed(at), _of_orca(at), _of_tgi(at, facts), _of_vllm(at),
        _of_chunked(at), *_of_reported(runs), _of_every_cap(runs), *_of_context(at, facts),
    ]  # fmt: skip


def _iteration_ms(run: PolicyRun) -> float:
    return 1e3 * run.summary.duration_s / run.steps.num_steps


def _of_static(static: PolicyRun, facts: DeviceFacts) -> str:
    read_ms = 1e3 * facts.weight_bytes / facts.bytes_per_s
    steps, summary = static.steps, static.summary
    slower = summary.total_tokens_per_s / REPORTED_STATIC_TOKENS_PER_S
    return (
        f"static: {summary.duration_s:,.0f} s over {steps.num_steps:,} iterations are {_iteration_ms(static):.1f} ms "
        f"each, of which {read_ms:.1f} ms read {facts.weight_bytes / 1e9:.1f} GB of weights at "
        f"{facts.bytes_per_s / 1e12:.2f} TB/s; meanwhile {steps.mean_batch:.1f} requests on average gain a token. So "
        f"{summary.total_tokens_per_s:,.0f} tokens/s come out where {REPORTED_STATIC_TOKENS_PER_S:.0f} were reported: "
        f"the eager baseline was {slower:.1f} times slower than equal kernels."
    )


def _of_packed(at: Mapping[str, PolicyRun]) -> str:
    seats = at["static"].steps.discarded_share
    return (
        f"packed_static is only {ratio(at, 'packed_static'):.2f}× static although {seats:.0%} of static's decode rows "
        f"are discarded: its iteration takes {_iteration_ms(at['packed_static']):.1f} ms instead of "
        f"{_iteration_ms(at['static']):.1f} ms, for reading the weights takes as long for one row as for four."
    )


def _of_orca(at: Mapping[str, PolicyRun]) -> str:
    static, orca = at["static"], at["orca"]
    return (
        f"orca is {ratio(at, 'orca'):.2f}× static because {orca.steps.mean_batch:.1f} requests share an iteration "
        f"instead of {static.steps.mean_batch:.1f}: {orca.steps.num_steps:,} iterations of "
        f"{_iteration_ms(orca):.1f} ms instead of {static.steps.num_steps:,} of {_iteration_ms(static):.1f} ms."
    )


def _of_tgi(at: Mapping[str, PolicyRun], facts: DeviceFacts) -> str:
    tgi, orca = at["tgi"], at["orca"]
    budget = tgi.case.parameters["max_batch_total_tokens"]
    return (
        f"tgi is {ratio(at, 'tgi', 'orca'):.2f}× orca: its quota of {budget:,} tokens is "
        f"{budget / facts.kv_capacity_tokens:.0%} of the pool's {facts.kv_capacity_tokens:,}, so "
        f"{tgi.steps.mean_running:.1f} requests run at once instead of {orca.steps.mean_running:.1f}."
    )


def _of_vllm(at: Mapping[str, PolicyRun]) -> str:
    vllm, orca, tgi = at["vllm_v0"].steps, at["orca"].steps, at["tgi"].steps
    return (
        f"vllm_v0 is {ratio(at, 'vllm_v0', 'orca'):.2f}× orca and {ratio(at, 'vllm_v0', 'tgi'):.2f}× tgi: pages waste "
        f"{vllm.kv_waste:.0%} of the KV cache that requests hold, each request's own maximum {orca.kv_waste:.0%}, so "
        f"{vllm.mean_running:.1f} requests run instead of {orca.mean_running:.1f} (tgi {tgi.mean_running:.1f}), at the "
        f"price of {vllm.num_preemptions} preemptions."
    )


def _of_chunked(at: Mapping[str, PolicyRun]) -> str:
    chunked, vllm = at["chunked"], at["vllm_v0"]
    return (
        f"chunked is {ratio(at, 'chunked', 'vllm_v0'):.3f}× vllm_v0: prompts ride beside decodes, which makes "
        f"{chunked.steps.num_steps:,} iterations of {_iteration_ms(chunked):.1f} ms out of {vllm.steps.num_steps:,} of "
        f"{_iteration_ms(vllm):.1f} ms and lets no running request wait (vllm_v0's do {vllm.steps.paused_share:.0%} of "
        f"their time), against {chunked.steps.num_preemptions} preemptions instead of {vllm.steps.num_preemptions}."
    )


def _of_reported(runs: Sequence[PolicyRun]) -> list[str]:
    baseline = 1 / baseline_factor(runs)
    return [
        f"{split.system}: reported {split.reported:g}× = {split.like_for_like:.2f}× by the policy ({split.policy}, "
        f"equal kernels) × {split.implementation:.1f}× by the implementation. Its "
        f"{split.reported * REPORTED_STATIC_TOKENS_PER_S:,.0f} tokens/s were {split.reached:.0%} of what the policy "
        f"reaches on this roofline, the baseline's {REPORTED_STATIC_TOKENS_PER_S:.0f} were {baseline:.0%}."
        for split in splits(runs)
    ]


def _of_every_cap(runs: Sequence[PolicyRun]) -> str:
    told = []
    for cap in sorted({run.cap for run in runs if run.workload == "burst"}):
        at = at_cap(runs, cap)
        if {"vllm_v0", "tgi"} <= at.keys():
            running = at["vllm_v0"].steps.mean_running / at["tgi"].steps.mean_running
            times = ratio(at, "vllm_v0", "tgi")
            told.append(f"{times:.2f}× at cap {cap} ({running:.2f}× the requests)")
    return (
        "vLLM was reported at more than twice naive continuous batching at every cap; on equal kernels vllm_v0 is "
        f"{', '.join(told)} of tgi: so much the larger batch explains, the rest is implementation."
    )


def _of_context(at: Mapping[str, PolicyRun], facts: DeviceFacts) -> list[str]:
    label = "orca (max_model_len)"
    if label not in at:
        return []
    at_once = facts.kv_capacity_tokens // facts.max_model_len
    return [
        f"{label} reserves {facts.max_model_len:,} tokens a request: the pool of {facts.kv_capacity_tokens:,} holds "
        f"{at_once} at once and {at[label].steps.kv_waste:.0%} of what they hold is empty. It is "
        f"{ratio(at, label):.2f}× static, and vllm_v0 is {ratio(at, 'vllm_v0', label):.2f}× it: "
        "the vLLM paper reports 2–4× over such an ORCA."
    ]
