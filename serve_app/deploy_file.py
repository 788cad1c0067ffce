"""DeployFile: the YAML of a deployment, read strictly. Serve would accept unknown keys and ignore them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from engine.api import ConfigError, nearest
from serve_app.config import AppConfig

IMPORT_PATH = "serve_app.app:build_app"
DEPLOYMENTS = frozenset({"Ingress", "LLMServer"})


@dataclass(frozen=True, slots=True)
class Section:
    """The keys that a mapping of the YAML may have, as in ray.serve.schema; sections below it by key.

    A test holds these lists against Ray's own classes: the launcher does not pay for importing them.
    """

    keys: frozenset[str]
    below: Mapping[str, "Section"]
    repeated: bool = False                         # a list of such mappings


def _section(keys: str, repeated: bool = False, **below: Section) -> Section:
    return Section(frozenset({*keys.split(), *below}), below, repeated)


LOGGING = _section("encoding log_level logs_dir enable_access_log additional_log_standard_attrs")
AUTOSCALING = _section(
    "min_replicas initial_replicas max_replicas target_ongoing_requests metrics_interval_s look_back_period_s "
    "smoothing_factor upscale_smoothing_factor downscale_smoothing_factor upscaling_factor downscaling_factor "
    "downscale_delay_s downscale_to_zero_delay_s upscale_delay_s aggregation_function",
    policy=_section("policy_function policy_kwargs"),
)
DEPLOYMENT = _section(
    "name num_replicas max_ongoing_requests max_queued_requests user_config graceful_shutdown_wait_loop_s "
    "graceful_shutdown_timeout_s health_check_period_s health_check_timeout_s placement_group_bundles "
    "placement_group_strategy placement_group_bundle_label_selector max_replicas_per_node deployment_actors "
    "rolling_update_percentage max_surge_percent",
    repeated=True,
    logging_config=LOGGING,
    autoscaling_config=AUTOSCALING,
    backpressure_config=_section("status_code retry_after_s"),
    gang_scheduling_config=_section("gang_size gang_placement_strategy runtime_failure_policy"),
    ray_actor_options=_section(
        "runtime_env num_cpus num_gpus memory resources accelerator_type label_selector fallback_strategy"
    ),
    request_router_config=_section(
        "request_router_class request_router_kwargs request_routing_stats_period_s request_routing_stats_timeout_s "
        "initial_backoff_s backoff_multiplier max_backoff_s"
    ),
)
APPLICATION = _section(
    "name route_prefix import_path runtime_env autoscaling_policy args external_scaler_enabled",
    repeated=True,
    deployments=DEPLOYMENT,
    logging_config=LOGGING,
)
FILE = _section(
    "proxy_location target_capacity",
    http_options=_section(
        "host port root_path request_timeout_s keep_alive_timeout_s ssl_keyfile ssl_certfile ssl_keyfile_password "
        "ssl_ca_certs"
    ),
    grpc_options=_section("port grpc_servicer_functions request_timeout_s enable_reflection"),
    controller_options=_section("runtime_env"),
    logging_config=LOGGING,
    tracing_config=_section("enabled exporter_import_path sampling_ratio"),
    applications=APPLICATION,
)


@dataclass(frozen=True, slots=True)
class DeployFile:
    """A deployment as the launcher runs it: checked, and with the host and port that Serve is to bind."""

    serve_config: Mapping[str, Any]                # what `serve run` gets
    host: str
    port: int
    application: str
    route_prefix: str
    app: AppConfig

    @property
    def url(self) -> str:
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        scheme = "https" if self.serve_config["http_options"].get("ssl_certfile") else "http"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.port}{self.route_prefix.rstrip('/')}"


class _StrictLoader(yaml.SafeLoader):
    """PyYAML's safe loader, which alone would let the last of two equal keys win."""


def _mapping_without_duplicates(loader: _StrictLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        if not isinstance(key_node, yaml.ScalarNode) or key_node.tag == "tag:yaml.org,2002:merge":
            continue
        key = loader.construct_object(key_node)
        if key in seen:
            raise ConfigError(f"line {key_node.start_mark.line + 1}: duplicate key '{key}'")
        seen.add(key)
    return loader.construct_mapping(node, deep=True)


_StrictLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping_without_duplicates)


def read_deploy_file(path: Path, *, port: int | None = None) -> DeployFile:
    """The deployment in the YAML file at `path`; `port` overrides the file's. Raises ConfigError with one line."""
    try:
        document = yaml.load(path.read_text(encoding="utf-8"), _StrictLoader)
        return parse_deploy_file(document, port=port)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def parse_deploy_file(document: Any, *, port: int | None = None) -> DeployFile:
    _check_keys(document, FILE, "")
    http = {"host": "127.0.0.1", "port": 8000} | (document.get("http_options") or {})
    if port is not None:
        http["port"] = port
    if not isinstance(http["host"], str):
        raise ConfigError(f"http_options.host: {http['host']!r} is not an address")
    if type(http["port"]) is not int or not 0 < http["port"] < 65536:
        raise ConfigError(f"http_options.port: {http['port']!r} is not a port between 1 and 65535")
    application = _only_application(document.get("applications"))
    return DeployFile(
        serve_config=dict(document) | {"http_options": http},
        host=http["host"],
        port=http["port"],
        application=application.get("name", "default"),
        route_prefix=application.get("route_prefix", "/"),
        app=parse_args(application.get("args") or {}, "applications[0].args"),
    )


def parse_args(args: Any, path: str) -> AppConfig:
    """AppConfig from the YAML's `args`; a ConfigError names the key at fault by its whole path."""
    try:
        return AppConfig.model_validate(args)
    except ValidationError as error:
        raise ConfigError(describe(error, path)) from None


def describe(error: ValidationError, path: str) -> str:
    """The first fault in `error` as one line, `path` being where the validated value stands in the file."""
    first = error.errors()[0]
    where = path + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
    return f"{where.lstrip('.')}: {first['msg'].removeprefix('Value error, ')}"


def _only_application(applications: Any) -> Mapping[str, Any]:
    if not applications:
        raise ConfigError("applications: missing; one is needed, with import_path and args")
    if len(applications) != 1:
        raise ConfigError(f"applications: {len(applications)} given; one server runs one application")
    application: Mapping[str, Any] = applications[0]
    if application.get("import_path") != IMPORT_PATH:
        raise ConfigError(
            f"applications[0].import_path: {application.get('import_path')!r}; the launcher runs '{IMPORT_PATH}'"
        )
    prefix = application.get("route_prefix", "/")
    if not isinstance(prefix, str) or not prefix.startswith("/"):
        raise ConfigError(f"applications[0].route_prefix: {prefix!r} does not start with '/'")
    for index, deployment in enumerate(application.get("deployments") or ()):
        if deployment.get("name") not in DEPLOYMENTS:
            raise ConfigError(
                f"applications[0].deployments[{index}].name: unknown deployment {deployment.get('name')!r}: "
                f"{nearest(str(deployment.get('name')), DEPLOYMENTS)}"
            )
    return application


def _check_keys(value: Any, section: Section, path: str) -> None:
    """Refuses keys that `section` does not have, at any depth; None stands for an absent section."""
    if not isinstance(value, Mapping):
        raise ConfigError(f"{path or 'the file'}: expected keys and values, found {value!r}")
    for key, item in value.items():
        here = f"{path}.{key}" if path else str(key)
        if key not in section.keys:
            raise ConfigError(f"{here}: unknown key: {nearest(str(key), section.keys)}")
        below = section.below.get(key)
        if below is None or item is None:
            continue
        if not below.repeated:
            _check_keys(item, below, here)
            continue
        if not isinstance(item, list):
            raise ConfigError(f"{here}: expected a list, found {item!r}")
        for index, entry in enumerate(item):
            _check_keys(entry, below, f"{here}[{index}]")
