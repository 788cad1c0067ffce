import inspect

from serve_app.app import build_app, ingress_options, llm_server_options
from serve_app.config import AppConfig
from serve_app.placement import Placement

CONFIG = AppConfig(model="demo", max_num_waiting=100, drain_timeout_s=20)
GPU = Placement("cuda", {"CPU": 1, "GPU": 1}, max_replicas=4)


def test_builder_names_its_argument_type():
    """Serve reads it to validate `args`; a postponed annotation would be a string, and nothing validated."""
    assert inspect.signature(build_app).parameters["args"].annotation is AppConfig


def test_replica_leaves_the_whole_bundle_to_its_engine():
    options = llm_server_options(CONFIG, GPU)
    assert options["ray_actor_options"] == {"num_cpus": 0}
    assert options["placement_group_bundles"] == [{"CPU": 1, "GPU": 1}]


def test_engines_are_scaled_up_to_the_gpus_there_are():
    assert llm_server_options(CONFIG, GPU)["autoscaling_config"]["max_replicas"] == 4


def test_engine_is_full_before_serve_is():
    for options in (llm_server_options(CONFIG, GPU), ingress_options(CONFIG)):
        assert options["max_ongoing_requests"] > CONFIG.max_num_waiting


def test_serve_waits_longer_than_the_drain_takes():
    for options in (llm_server_options(CONFIG, GPU), ingress_options(CONFIG)):
        assert options["graceful_shutdown_timeout_s"] > CONFIG.drain_timeout_s
