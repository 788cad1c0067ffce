"""The simulator against a real engine, and on its own at scale.

python -m bench.simulation --calibrate --model demo --device cpu --out here.json
python -m bench.simulation --validate here.json --model demo --device cpu
python -m bench.simulation --day --model llama-8b --device h100 --requests 1000000

`--calibrate` times every step of one workload and fits the device `measured:here.json` to them. `--validate` runs other
workloads (other prompts, caps, batch sizes) on the real engine and in simulation, and prints what the simulation got
wrong. Given together, both use one loaded model. `--day` replays a Poisson day of requests and says how long that took.
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from bench.result_file import RESULTS, stamped, write_result
from bench.simulated_day import Day, run_day
from bench.simulation_trials import SCHEMA, TRIALS, calibrate, validate
from bench.timed_engine import TimedEngine
from engine.config import prepare_process
from engine.errors import ConfigError


def replay_day(args: argparse.Namespace) -> None:
    day = Day(args.requests, args.mean_prompt_len, args.mean_output_len, args.seed, args.hours)
    scheduler = {"policy": args.policy}
    result = run_day(day, scheduler, model=args.model, device=args.device)
    print(f"{args.model} on {args.device}, {args.policy}: {result}")
    document = {
        **stamped(SCHEMA), "model": args.model, "device": args.device, "scheduler": scheduler, **asdict(result)
    }  # fmt: skip
    print(f"saved {write_result(document, 'simulated-day', folder=args.results)}")


def run(args: argparse.Namespace) -> None:
    if args.day:
        replay_day(args)
        return
    engine = TimedEngine(args.model, args.device, num_threads=args.threads, cpu_time=args.cpu_time)
    if args.calibrate:
        device = calibrate(engine, args.seed)
        args.out.write_text(json.dumps(device.to_json(), indent=1) + "\n", encoding="utf-8")
        errors = device.source["relative_error_of_step_times"]
        print(
            f"{len(device.source['steps'])} steps, fitted to {errors['median']:.1%} at the median and "
            f"{errors['p90']:.1%} at the 90th percentile; saved {args.out}",
            flush=True,
        )
    if args.validate:
        verdicts = validate(engine, args.validate, args.seed, only=args.only)
        document = {
            **stamped(SCHEMA),
            **engine.timing,
            "device": json.loads(args.validate.read_text(encoding="utf-8")),
            "trials": [asdict(trial) | {"workload": trial.spec.name} for trial in TRIALS],
            "verdicts": [asdict(verdict) | {"throughput_error": verdict.throughput_error} for verdict in verdicts],
        }
        print(f"saved {write_result(document, 'simulation', folder=args.results)}")


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calibrate", action="store_true", help="time the real engine and write --out")
    parser.add_argument("--validate", type=Path, metavar="FILE", help="hold this calibration against the real engine")
    parser.add_argument("--only", default="", metavar="TEXT", help="validate with the workloads of this in their name")
    parser.add_argument("--day", action="store_true", help="replay a day of requests")
    parser.add_argument("--model", default="demo", help="whatever the YAML may name, or a shape: llama-8b")
    parser.add_argument("--device", default="cpu", help="cpu or cuda to time; for --day a100-40gb, h100, measured:…")
    parser.add_argument("--threads", type=int, help="CPU threads of the real engine (default: all cores)")
    parser.add_argument("--cpu-time", action="store_true", help="one thread, timed by its own work: for a busy machine")
    parser.add_argument("--out", type=Path, default=Path("device.json"), help="what --calibrate writes")
    parser.add_argument("--policy", default="chunked", help="of the day's scheduler")
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--mean-prompt-len", type=int, default=200)
    parser.add_argument("--mean-output-len", type=int, default=100)
    parser.add_argument("--hours", type=float, help="of the day, from its beginning (default: all of it)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the JSON file")
    return parser


if __name__ == "__main__":
    prepare_process()
    arguments = parser().parse_args()
    if not (arguments.calibrate or arguments.validate or arguments.day):
        raise SystemExit("nothing to do: give --calibrate, --validate FILE or --day")
    try:
        run(arguments)
    except ConfigError as error:
        raise SystemExit(str(error)) from None
