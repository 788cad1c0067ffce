from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel
from ray.serve import config as serve_config
from ray.serve import schema as serve_schema

from engine.api import ConfigError
from serve_app import deploy_file
from serve_app.deploy_file import parse_deploy_file, read_deploy_file

DEPLOY = Path(__file__).parents[2] / "deploy"
ARGS = "applications[0].args"


def document(**changes):
    application = {"name": "conveyor", "import_path": deploy_file.IMPORT_PATH, "args": {"model": "demo"}}
    return {"http_options": {"host": "127.0.0.1", "port": 8000}, "applications": [application | changes]}


@pytest.mark.parametrize("path", sorted(DEPLOY.glob("*.yaml")), ids=lambda path: path.name)
def test_shipped_files_are_valid_for_us_and_for_serve(path):
    deployment = read_deploy_file(path)
    assert deployment.app.model
    serve_schema.ServeDeploySchema.model_validate(dict(deployment.serve_config))


def test_defaults_bind_the_loopback_only():
    deployment = parse_deploy_file(document() | {"http_options": None})
    assert (deployment.host, deployment.port) == ("127.0.0.1", 8000)
    assert deployment.serve_config["http_options"] == {"host": "127.0.0.1", "port": 8000}


def test_port_of_the_command_line_reaches_serve():
    deployment = parse_deploy_file(document(), port=9000)
    assert (deployment.port, deployment.serve_config["http_options"]["port"]) == (9000, 9000)


@pytest.mark.parametrize(
    ("host", "prefix", "url"),
    [
        ("0.0.0.0", "/", "http://127.0.0.1:8000"),
        ("::", "/", "http://[::1]:8000"),
        ("10.0.0.7", "/llm", "http://10.0.0.7:8000/llm"),
    ],
)
def test_url_is_one_that_a_client_can_use(host, prefix, url):
    deployment = parse_deploy_file(document(route_prefix=prefix) | {"http_options": {"host": host}})
    assert deployment.url == url


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"args": {"model": "demo", "schedular": {}}}, f"{ARGS}: unknown key 'schedular': did you mean 'scheduler'?"),
        (
            {"args": {"model": "demo", "kv_cache": {"blok_size": 16}}},
            f"{ARGS}.kv_cache: unknown key 'blok_size': did you mean 'block_size'?",
        ),
        ({"args": {"model": "demo", "scheduler": {"max_num_seq": 4}}}, "did you mean 'max_num_seqs'?"),
        ({"args": {"model": "demo", "scheduler": {"policy": "chunkt"}}}, "did you mean 'chunked'?"),
        (
            {"args": {"model": "demo", "scheduler": {"max_num_seqs": 0}}},
            f"{ARGS}.scheduler.max_num_seqs: Input should be greater than 0",
        ),
        ({"args": {"model": "demo", "device": "tpu"}}, f"{ARGS}.device: Input should be 'auto', 'cuda' or 'cpu'"),
        ({"args": {}}, f"{ARGS}.model: Field required"),
        ({"args": ["demo"]}, f"{ARGS}: "),
        ({"route_prefx": "/"}, "applications[0].route_prefx: unknown key: did you mean 'route_prefix'?"),
        ({"route_prefix": "api"}, "applications[0].route_prefix: 'api' does not start with '/'"),
        ({"import_path": "other:app"}, "applications[0].import_path: 'other:app'"),
        ({"deployments": {"name": "Ingress"}}, "applications[0].deployments: expected a list"),
        (
            {"deployments": [{"name": "Ingres"}]},
            "applications[0].deployments[0].name: unknown deployment 'Ingres': did you mean 'Ingress'?",
        ),
        (
            {"deployments": [{"name": "Ingress", "autoscaling_config": {"min_replica": 1}}]},
            "applications[0].deployments[0].autoscaling_config.min_replica: unknown key: did you mean 'min_replicas'?",
        ),
    ],
)
def test_mistakes_are_named_with_their_path_and_the_nearest_key(changes, message):
    with pytest.raises(ConfigError) as raised:
        parse_deploy_file(document(**changes))
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("whole", "message"),
    [
        (None, "the file: expected keys and values, found None"),
        ({"applications": []}, "applications: missing"),
        ({"aplications": []}, "aplications: unknown key: did you mean 'applications'?"),
        (document() | {"http_options": {"prt": 1}}, "http_options.prt: unknown key: did you mean 'port'?"),
        (document() | {"http_options": {"port": 70000}}, "http_options.port: 70000 is not a port"),
        (document() | {"http_options": {"port": True}}, "http_options.port: True is not a port"),
        (document() | {"http_options": {"host": 1}}, "http_options.host: 1 is not an address"),
        ({"applications": document()["applications"] * 2}, "applications: 2 given; one server runs one application"),
    ],
)
def test_mistakes_outside_the_application_are_named(whole, message):
    with pytest.raises(ConfigError) as raised:
        parse_deploy_file(whole)
    assert str(raised.value).startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("http_options: {port: 1}\nhttp_options: {port: 2}\n", "line 2: duplicate key 'http_options'"),
        ("applications:\n- args: {model: a, model: b}\n", "line 2: duplicate key 'model'"),
        ("applications: [", "not YAML: "),
    ],
)
def test_broken_yaml_is_one_line_with_the_file_name(tmp_path, text, message):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as raised:
        read_deploy_file(path)
    assert str(raised.value).startswith(f"{path}: {message}")
    assert "\n" not in str(raised.value)


def test_merge_keys_may_be_overridden(tmp_path):
    path = tmp_path / "merged.yaml"
    both = document()
    both["applications"][0]["args"] = {"model": "demo", "seed": 1}
    text = yaml.safe_dump(both).replace("args:\n", "args:\n    <<: {seed: 2, max_model_len: 64}\n")
    path.write_text(text)
    app = read_deploy_file(path).app
    assert (app.seed, app.max_model_len) == (1, 64)


def test_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.yaml: No such file or directory"):
        read_deploy_file(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("section", "theirs", "left_out"),
    [
        (deploy_file.FILE, serve_schema.ServeDeploySchema, set()),
        (deploy_file.FILE.below["http_options"], serve_schema.HTTPOptionsSchema, set()),
        (deploy_file.FILE.below["grpc_options"], serve_schema.gRPCOptionsSchema, set()),
        (deploy_file.FILE.below["controller_options"], serve_config.ControllerOptions, set()),
        (deploy_file.FILE.below["tracing_config"], serve_schema.TracingConfig, set()),
        (deploy_file.APPLICATION, serve_schema.ServeApplicationSchema, {"host", "port"}),    # refused by Serve itself
        (deploy_file.DEPLOYMENT, serve_schema.DeploymentSchema, set()),
        (deploy_file.DEPLOYMENT.below["ray_actor_options"], serve_schema.RayActorOptionsSchema, set()),
        (deploy_file.DEPLOYMENT.below["backpressure_config"], serve_config.BackpressureConfig, set()),
        (deploy_file.DEPLOYMENT.below["gang_scheduling_config"], serve_config.GangSchedulingConfig, set()),
        (deploy_file.DEPLOYMENT.below["request_router_config"], serve_config.RequestRouterConfig, set()),
        (deploy_file.AUTOSCALING, serve_config.AutoscalingConfig, set()),
        (deploy_file.AUTOSCALING.below["policy"], serve_config.AutoscalingPolicy, set()),
        (deploy_file.LOGGING, serve_schema.LoggingConfig, set()),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_keys_are_those_of_the_installed_serve(section, theirs: type[BaseModel], left_out):
    assert section.keys == set(theirs.model_fields) - left_out
