from bench.peers.http_server import deployment
from serve_app.config import AppConfig


def test_the_default_deployment_is_served_with_another_engine_and_port():
    document = deployment({"model": "m", "dtype": "int8", "kv_cache": {"capacity_tokens": 64}}, 1234)
    assert document["http_options"] == {"host": "127.0.0.1", "port": 1234}
    [application] = document["applications"]
    config = AppConfig.model_validate(application["args"])
    assert (config.model, config.dtype, config.kv_cache.capacity_tokens) == ("m", "int8", 64)
    assert config.kv_cache.prefix_caching and config.scheduler.policy == "chunked"
    assert {deployment["name"] for deployment in application["deployments"]} == {"Ingress", "LLMServer"}
