"""The launcher: `python -m serve_app deploy/app.yaml` serves that deployment until it is told to stop.

Exit status: 0 after a drain (SIGTERM), 130 after Ctrl-C, 1 with one line of cause if the server cannot start.
"""

import argparse
import sys
from pathlib import Path

from engine.api import ConfigError, PreflightReport
from serve_app.config import refuse_foreign_kernels, serve_environment
from serve_app.deploy_file import read_deploy_file
from serve_app.launcher.ports import HAPROXY_PORTS, check_free, claim, free_port
from serve_app.launcher.preflight import run_preflight
from serve_app.launcher.processes import adopt_orphans, end_descendants
from serve_app.launcher.signals import Interrupted, Signals
from serve_app.launcher.supervisor import supervise


def main(arguments: list[str]) -> int:
    options = _parse(arguments)
    adopt_orphans()
    signals = Signals()
    signals.install()
    try:
        deployment = read_deploy_file(options.file, port=options.port)
        refuse_foreign_kernels()
        check_free(deployment.host, deployment.port)
        for port in HAPROXY_PORTS if options.haproxy else ():
            check_free("0.0.0.0", port)
        with claim(deployment.port):
            environ = serve_environment(haproxy_fallback_port=free_port() if options.haproxy else None)
            return supervise(deployment, lambda: _check(options.file, signals), environ, signals, say)
    except ConfigError as error:
        say(f"error: {error}")
        return 1
    except Interrupted as stop:
        return stop.exit_status
    finally:
        end_descendants()


def _check(file: Path, signals: Signals) -> PreflightReport:
    report = run_preflight(file, signals)
    say(memory_plan(report))
    return report


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def memory_plan(report: PreflightReport) -> str:
    parts = {"weights": report.weights_bytes, "activations": report.activation_bytes}
    if report.task == "generate":
        parts["KV cache"] = report.kv_bytes
    plan = " + ".join(f"{name} {size / 2**30:.2f} GiB" for name, size in parts.items())
    capacity = f" ({report.kv_capacity_tokens} tokens)" if report.task == "generate" else ""
    return f"memory plan on {report.device}: {plan}{capacity}"


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m serve_app", description="Serve a model as a YAML file describes.")
    parser.add_argument("file", type=Path, help="the deployment, such as deploy/app.yaml")
    parser.add_argument("--port", type=int, help="HTTP port, instead of the file's")
    parser.add_argument(
        "--haproxy",
        action="store_true",
        help="HAProxy in front of the replicas: faster, but its ports 8404 and 9101 listen on every interface",
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
