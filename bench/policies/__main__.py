"""Every scheduling policy on one engine: swept like for like, or ranked for your own traffic.

python -m bench.policies --setting seed --device sim:a100-40gb --model opt-13b       in virtual time
python -m bench.policies --setting cpu --model demo                                  on this machine's processor
python -m bench.policies --recommend --trace mine.jsonl --device sim:h100 --model llama-8b --objective goodput

A sweep writes JSON, pictures and one HTML page to a folder under bench/results. `--trace` takes recorded arrivals
(see bench.trace) or a trace that a serving engine wrote (`trace: path` in its configuration). Needs the extra `bench`.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from tqdm import tqdm

from bench.metrics import Objective
from bench.policies.cases import HARNESSES, REPEATED, burst, cases, poisson
from bench.policies.findings import explanations, order_text, splits
from bench.policies.recommend import GOALS, candidates, rank, ranking_text
from bench.policies.runs import Case, PolicyRun
from bench.policies.simulated import SimulatedTarget
from bench.result_file import RESULTS
from bench.vocabulary import load_vocabulary
from bench.workloads import Burst, Poisson, Trace, Workload, build_workload
from engine.errors import ConfigError
from engine.scheduling.policies import policy_names

Planned = tuple[Case, Workload, int]                    # the last: which repeat
_ANY_TOKENS = range(1000)                               # of prompts that nobody computes
_SMALL = {"num_requests": 6, "prompt_len": 8, "mean_output_len": 4}


def is_simulated(device: str) -> bool:
    return device.startswith(("sim:", "measured:"))


def planned_bursts(args: argparse.Namespace, vocabulary: Sequence[int], *, repeats: int) -> Iterator[Planned]:
    """Every case at every cap; those of REPEATED in further rounds, in which they take turns."""
    workloads = {cap: _workload(args, burst(args.setting, cap), vocabulary) for cap in _caps(args)}
    for repeat in range(repeats):
        for cap, workload in workloads.items():
            for case in cases(args.setting, cap, args.only, both_reserves=is_simulated(args.device)):
                if repeat == 0 or case.policy in REPEATED:
                    yield case, workload, repeat


def planned_latencies(args: argparse.Namespace) -> Iterator[Planned]:
    cap = poisson(args.setting, 1.0).cap
    for rate in args.rates:
        workload = _workload(args, poisson(args.setting, rate), _ANY_TOKENS)
        for case in cases(args.setting, cap, args.only, both_reserves=False):
            yield case, workload, 0


def _caps(args: argparse.Namespace) -> Sequence[int]:
    return args.caps or ((32, 384) if args.setting == "cpu" else HARNESSES[args.setting].caps)


def _workload(args: argparse.Namespace, spec: Burst | Poisson, vocabulary: Sequence[int]) -> Workload:
    return build_workload(replace(spec, **_SMALL) if args.tiny else spec, vocabulary, args.seed)


def sweep(args: argparse.Namespace, objective: Objective) -> None:
    from bench.policies.publish import new_folder

    run = sweep_simulated if is_simulated(args.device) else sweep_measured
    if run is sweep_measured and args.tiny:
        args.model = "random:tiny"
    name = args.name or f"policies-{args.setting}-{args.model.replace('/', '_').replace(':', '_')}"
    args.folder = new_folder(name, results=args.results)
    run(args, objective)


def sweep_simulated(args: argparse.Namespace, objective: Objective) -> None:
    target = SimulatedTarget(args.model, args.device, HARNESSES[args.setting].capacity_tokens)
    planned = [*planned_bursts(args, _ANY_TOKENS, repeats=1), *planned_latencies(args)]
    runs: list[PolicyRun] = []
    for case, workload, repeat in tqdm(planned, unit="run"):
        runs.append(target.run(case, workload, objective, repeat=repeat))
    sentences = _sentences(runs, target)
    _publish(args, runs, sentences, _device_text(args.device), target.description(Case("chunked")))


def _sentences(runs: Sequence[PolicyRun], target: SimulatedTarget) -> list[str]:
    caps = sorted({run.cap for run in runs if run.workload == "burst"})
    return [*(order_text(runs, cap) for cap in caps), *explanations(runs, target.facts())]


def sweep_measured(args: argparse.Namespace, objective: Objective) -> None:
    from bench.policies.estimate import estimate_s, probe
    from bench.policies.measured import MeasuredTarget

    device = "cpu" if args.device == "auto" else args.device
    longest = burst(args.setting, max(_caps(args)))
    max_model_len = None if args.setting == "seed" else longest.prompt_len + longest.cap
    target = MeasuredTarget(
        args.model, device=device, capacity_tokens=HARNESSES[args.setting].capacity_tokens, max_model_len=max_model_len
    )
    planned = list(planned_bursts(args, load_vocabulary(args.model), repeats=args.repeats))
    seconds = estimate_s(probe(target), target, [(case, workload) for case, workload, _ in planned])
    print(f"{len(planned)} runs, about {seconds / 60:.0f} minutes", flush=True)
    runs = []
    for case, workload, repeat in (bar := tqdm(planned, unit="run")):
        bar.set_postfix_str(f"{case.label}, cap {workload.parameters['cap']}")
        runs.append(target.run(case, workload, objective, repeat=repeat))
    sentences = [order_text(runs, cap) for cap in sorted({run.cap for run in runs})]
    _publish(args, runs, sentences, f"this {device}", target.description())


def _device_text(device: str) -> str:
    return f"a simulated {device.removeprefix('sim:')}" if device.startswith("sim:") else "this machine, simulated"


def _settings_text(args: argparse.Namespace, device: str) -> tuple[str, str]:
    """What was run, in a line: the throughput sweep, the latency study."""
    small = _SMALL if args.tiny else {}
    at_once, spread = asdict(burst(args.setting, 1)) | small, asdict(poisson(args.setting, 1)) | small
    on = f"{args.model} on {device}, seed {args.seed}"
    return (
        f"{at_once['num_requests']} requests at once, {at_once['prompt_len']} tokens in; {on}",
        f"{spread['num_requests']} requests of 1 to {spread['prompt_len']} tokens, arriving at random; {on}",
    )


def _publish(
    args: argparse.Namespace, runs: Sequence[PolicyRun], sentences: Sequence[str], device: str,
    description: Mapping[str, object],
) -> None:  # fmt: skip
    from bench.policies.picture import picture_traces
    from bench.policies.publish import Sweep, publish, throughput_text

    print(throughput_text([run for run in runs if run.workload == "burst"]))
    print("", *sentences, sep="\n")
    failed = sum(run.summary.num_failed for run in runs)
    if failed:
        print(f"{failed} requests FAILED; see the summaries in the JSON")
    setting, latency_setting = _settings_text(args, device)
    found = Sweep(
        title=f"Scheduling policies: {args.model} on {device}", setting=setting,
        latency_setting=latency_setting, description=description, runs=tuple(runs),
        splits=tuple(splits(runs)) if args.setting == "seed" else (), sentences=tuple(sentences),
        traces=picture_traces(args.only),
    )  # fmt: skip
    publish(found, args.folder)
    print(f"saved {args.folder}")


def recommend(args: argparse.Namespace, objective: Objective) -> None:
    if args.trace is None:
        raise SystemExit("--recommend needs --trace: a JSONL or CSV of arrivals, or a trace that an engine wrote")
    if not is_simulated(args.device):
        raise SystemExit("--recommend ranks by simulation: --device sim:<name> or measured:<file>")
    workload = build_workload(Trace(str(args.trace), args.num_requests), _ANY_TOKENS, args.seed)
    target = SimulatedTarget(args.model, args.device)
    target.plan(Case("chunked"))                        # an unknown device or model is told once, not by every case
    chosen = candidates(args.only)
    with tqdm(total=len(chosen), unit="case", leave=False) as bar:
        ranking = rank(target, workload, chosen, GOALS[args.objective], objective, bar.update)
    span = f"{len(workload.requests)} requests over {workload.requests[-1].arrival_s:,.0f} s"
    print(f"{span}, {args.model} on {args.device}, by {args.objective}\n")
    print(ranking_text(ranking, GOALS[args.objective], top=args.top))


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.policies", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--setting", choices=list(HARNESSES), default="cpu", help="size of the workloads")
    parser.add_argument("--model", default="demo", help="demo, a Hugging Face id, a folder, a .gguf file, or a shape")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, sim:<name> or measured:<file>")
    parser.add_argument("--only", nargs="+", choices=policy_names(), default=[], metavar="POLICY", help="these alone")
    parser.add_argument("--caps", type=int, nargs="+", help="most output tokens (seed: 32 128 512 1536; cpu: 32 384)")
    parser.add_argument("--rates", type=float, nargs="*", default=[1.0, 4.0], help="requests/s of the latency study")
    parser.add_argument("--repeats", type=int, default=3, help=f"rounds of {', '.join(REPEATED)} on a real device")
    parser.add_argument("--tiny", action="store_true", help="a handful of short requests: shows that all runs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--recommend", action="store_true", help="rank policies for --trace instead of sweeping")
    parser.add_argument("--trace", type=Path, help="your traffic")
    parser.add_argument("--num-requests", type=int, help="of the trace, the first so many")
    parser.add_argument("--objective", choices=list(GOALS), default="throughput")
    parser.add_argument("--ttft-objective-s", type=float, default=2.0, help="a good request's TTFT is at most this")
    parser.add_argument("--tpot-objective-s", type=float, default=0.25, help="and its TPOT at most this")
    parser.add_argument("--top", type=int, default=12, help="lines of the ranking")
    parser.add_argument("--name", help="of the folder, after the date")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the sweep's folder")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    args = parser().parse_args(arguments)
    objective = Objective(args.ttft_objective_s, args.tpot_objective_s)
    try:
        if args.recommend:
            recommend(args, objective)
        else:
            sweep(args, objective)
    except (ConfigError, OSError, ValueError) as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
