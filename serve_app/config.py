"""AppConfig: the `args` of our application in the YAML. With it, all that serve_app reads or sets of the environment.

Free of ray and torch: the launcher and the Serve controller import it.
"""

import os
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from pydantic import Field, ValidationInfo, field_validator

from engine.api import REASONING_TAGS, TOOL_FORMATS, ConfigError, EngineConfig, nearest
from serve_app.limits import RequestLimits


class AppConfig(EngineConfig):
    """One application: one model, its engine's settings, and the limits of its HTTP side."""

    served_model_name: str | None = Field(
        None, min_length=1, description="what clients call the model; default: the model's own name"
    )
    limits: RequestLimits = RequestLimits()
    chat_template: str | None = Field(None, description="a file with a Jinja template instead of the model's own")
    tool_parser: str = Field("auto", description="how the model writes tool calls: auto, none or a name")
    reasoning_parser: str = Field("auto", description="how the model marks its reasoning: auto, none or a name")
    max_body_bytes: int = Field(8 * 2**20, gt=0, description="largest request body")
    request_timeout_s: float = Field(600.0, gt=0, description="a request ends with an error after this time")
    keep_alive_s: float = Field(10.0, gt=0, description="a stream that has nothing to say sends a comment this often")
    drain_timeout_s: float = Field(30.0, ge=0, description="time that running requests get to finish on shutdown")

    @field_validator("tool_parser", "reasoning_parser")
    @classmethod
    def _check_parser(cls, name: str, info: ValidationInfo) -> str:
        known = {"auto", "none", *(TOOL_FORMATS if info.field_name == "tool_parser" else REASONING_TAGS)}
        if name not in known:
            raise ValueError(f"unknown parser '{name}': {nearest(name, known)}")
        return name


def read_chat_template(path: str) -> str:
    """The text of `chat_template`. Raises ConfigError if it cannot be read."""
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"chat_template: {path} cannot be read: {error}") from None


def serve_environment(*, haproxy_fallback_port: int | None, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """`environ` as Ray is to see it: a cluster of our own, quiet, with Serve's switches as we run it.

    HAProxy stands in front if a free port is given for the proxy that Serve keeps behind it for ingresses at rest.
    """
    chosen = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_SERVE_MAX_PER_REPLICA_RETRY_COUNT": "2",       # a model that cannot load fails alike every time
        "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.5",         # at 0.1, its default, the controller takes 4 % of a core
        "RAY_worker_niceness": "0",                         # at 15, its default, anything else displaces the engine
        # An item's way through Serve costs two fifths less without a second thread and loop in each process, and by
        # gRPC rather than through Ray's object store. Nothing of ours holds a loop up for longer than a health check.
        "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
        "RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP": "0",
        "RAY_SERVE_USE_GRPC_BY_DEFAULT": "1",
        "RAY_SERVE_METRICS_EXPORT_INTERVAL_MS": "1000",     # at 100, its default, every process wakes for it
        "PYTHONUNBUFFERED": "1",
    }
    if haproxy_fallback_port is None:
        chosen |= {
            "RAY_SERVE_ENABLE_HA_PROXY": "0",
            "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "serve_app.launcher.proxy_socket.bind_alone",
            "SERVE_SOCKET_REUSE_PORT_ENABLED": "1",         # has Serve prepare its socket, in the callback's way
        }
    else:
        chosen |= {
            "RAY_SERVE_ENABLE_HA_PROXY": "1",
            "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
            "SERVE_SOCKET_REUSE_PORT_ENABLED": "0",         # HAProxy shares no port, and binds over TIME_WAIT
            "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(haproxy_fallback_port),    # which does not bind over it
        }
    return {key: value for key, value in environ.items() if key != "RAY_ADDRESS"} | chosen


def refuse_foreign_kernels() -> None:
    """Raises ConfigError where Hugging Face's distribution `kernels` is installed: its package has our name."""
    try:
        version = metadata.version("kernels")
    except metadata.PackageNotFoundError:
        return
    raise ConfigError(
        f"the distribution 'kernels' {version} is installed and its package hides ours of that name; "
        "run: pip uninstall kernels"
    )
