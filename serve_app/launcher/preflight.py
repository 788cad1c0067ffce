"""Preflight: everything about model and machine that can be found out before Ray starts.

`python -m serve_app.launcher.preflight FILE` is a process of its own, for torch and transformers would otherwise stay
in the launcher's memory for as long as it serves. It fetches the model, showing progress on stderr, and leaves one
line of JSON on stdout: the report, or `{"error": …}`.
"""

import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from engine.api import ConfigError, PreflightReport, check_chat_template, preflight
from serve_app.config import read_chat_template
from serve_app.deploy_file import describe, read_deploy_file
from serve_app.launcher.processes import follow_parent
from serve_app.launcher.signals import Signals


def run_preflight(path: Path, signals: Signals) -> PreflightReport:
    """The report on the deployment at `path`. Raises ConfigError with the cause, Interrupted on a signal."""
    process = subprocess.Popen(
        [sys.executable, "-m", "serve_app.launcher.preflight", str(path), str(os.getpid())],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,                       # Ctrl-C in the terminal is for the launcher alone
    )
    while True:
        signals.raise_if_any()
        try:
            output, _ = process.communicate(timeout=0.1)
            break
        except subprocess.TimeoutExpired:
            continue
    lines = output.splitlines()
    if process.returncode or not lines:
        raise ConfigError(f"checking the model ended with exit status {process.returncode}, see above")
    answer: dict[str, Any] = json.loads(lines[-1])
    if "error" in answer:
        raise ConfigError(answer["error"])
    return PreflightReport(**answer)


def main(path: Path) -> None:
    try:
        deployment = read_deploy_file(path)
        _check_serve_values(dict(deployment.serve_config))
        if deployment.app.chat_template is not None:
            check_chat_template(read_chat_template(deployment.app.chat_template))
        answer = dataclasses.asdict(preflight(deployment.app))
        answer["model_name"] = deployment.app.served_model_name or answer["model_name"]
    except ConfigError as error:
        answer = {"error": str(error)}
    print(json.dumps(answer))


def _check_serve_values(serve_config: dict[str, Any]) -> None:
    """Have Serve itself check the values of its own keys; the keys are known to exist."""
    from pydantic import ValidationError
    from ray.serve.config import AutoscalingConfig
    from ray.serve.schema import ServeDeploySchema

    path = ""
    try:
        schema = ServeDeploySchema.model_validate(serve_config)
        for index, deployment in enumerate(schema.applications[0].deployments):
            path = f"applications[0].deployments[{index}].autoscaling_config"
            if isinstance(deployment.autoscaling_config, dict):
                AutoscalingConfig.model_validate(deployment.autoscaling_config)
    except ValidationError as error:
        raise ConfigError(describe(error, path)) from None


if __name__ == "__main__":
    follow_parent(int(sys.argv[2]), signal.SIGKILL)
    main(Path(sys.argv[1]))
