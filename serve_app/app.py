"""build_app: the Serve application, Ingress in front of LLMServer, for `import_path: serve_app.app:build_app`.

Names and options set here are defaults; `deployments` in the YAML overrides them one by one.
No `from __future__ import annotations` in this module: Serve reads the type of `args` to validate them.
"""

from typing import Any

import ray
from ray import serve
from ray.serve import Application

from serve_app.config import AppConfig, refuse_foreign_kernels
from serve_app.ingress import Ingress
from serve_app.llm_server import EngineFactory, LLMServer
from serve_app.placement import Placement, place
from serve_app.remote_engine import remote_engine

HEALTH_CHECK = {"health_check_period_s": 1.0, "health_check_timeout_s": 10.0}
SHUTDOWN_SLACK_S = 5.0        # Serve kills a replica this long after the drain should have ended
MAX_RUNNING = 1024            # no engine runs more requests at once
INGRESS_AUTOSCALING = {"min_replicas": 1, "max_replicas": 4, "target_ongoing_requests": 64}


def build_app(args: AppConfig) -> Application:
    return assemble(args, remote_engine)


def assemble(args: AppConfig, engine_factory: EngineFactory) -> Application:
    """The application around engines of `engine_factory`; tests put faulty ones there."""
    refuse_foreign_kernels()
    placement = place(args, [node["Resources"] for node in ray.nodes() if node["Alive"]])  # type: ignore[no-untyped-call]
    llm_server = serve.deployment(name="LLMServer", **llm_server_options(args, placement))(LLMServer)
    ingress = serve.deployment(name="Ingress", **ingress_options(args))(serve.ingress()(Ingress))
    return ingress.bind(args, llm_server.bind(args, engine_factory))


def llm_server_options(config: AppConfig, placement: Placement) -> dict[str, Any]:
    return {
        **_options(config),
        "ray_actor_options": {"num_cpus": 0},
        "placement_group_bundles": [dict(placement.bundle)],
        "autoscaling_config": {
            "min_replicas": 1,
            "max_replicas": placement.max_replicas,
            "target_ongoing_requests": 32,
        },
    }


def ingress_options(config: AppConfig) -> dict[str, Any]:
    return {**_options(config), "ray_actor_options": {"num_cpus": 0}, "autoscaling_config": INGRESS_AUTOSCALING}


def _options(config: AppConfig) -> dict[str, Any]:
    return {
        **HEALTH_CHECK,
        "logging_config": {"enable_access_log": False},      # ours has a line per request, Serve's one per call
        # more than the engine accepts, so that the engine says when it is full, in one place and with a reason
        "max_ongoing_requests": config.max_num_waiting + MAX_RUNNING,
        "graceful_shutdown_wait_loop_s": 0.5,
        "graceful_shutdown_timeout_s": config.drain_timeout_s + SHUTDOWN_SLACK_S,
    }
