from importlib import metadata

import pytest
from pydantic import ValidationError

from engine.api import ConfigError
from serve_app.config import AppConfig, refuse_foreign_kernels, serve_environment


def test_only_the_model_is_needed():
    config = AppConfig(model="demo")
    assert (config.served_model_name, config.device, config.scheduler.policy) == (None, "auto", "chunked")


def test_cluster_is_never_a_foreign_one():
    environ = serve_environment(
        haproxy_fallback_port=None, environ={"RAY_ADDRESS": "10.0.0.1:6379", "HOME": "/home/me"}
    )
    assert "RAY_ADDRESS" not in environ
    assert environ["HOME"] == "/home/me"


def test_haproxy_comes_with_the_throughput_settings():
    environ = serve_environment(haproxy_fallback_port=8501, environ={})
    assert (environ["RAY_SERVE_ENABLE_HA_PROXY"], environ["RAY_SERVE_THROUGHPUT_OPTIMIZED"]) == ("1", "1")
    assert environ["RAY_SERVE_FALLBACK_PROXY_HTTP_PORT"] == "8501"


def test_environment_of_the_user_does_not_turn_haproxy_on():
    environ = serve_environment(haproxy_fallback_port=None, environ={"RAY_SERVE_ENABLE_HA_PROXY": "1"})
    assert environ["RAY_SERVE_ENABLE_HA_PROXY"] == "0"
    assert "RAY_SERVE_THROUGHPUT_OPTIMIZED" not in environ


def test_foreign_kernels_are_refused_with_the_remedy(monkeypatch):
    monkeypatch.setattr(metadata, "version", {"kernels": "0.18.2"}.__getitem__)
    with pytest.raises(ConfigError, match=r"'kernels' 0\.18\.2 is installed.*pip uninstall kernels"):
        refuse_foreign_kernels()


def test_no_foreign_kernels_here():
    refuse_foreign_kernels()


@pytest.mark.parametrize("field, name, hint", [
    ("tool_parser", "herms", "did you mean 'hermes'"),
    ("reasoning_parser", "hermes", "known: auto, gemma4, mistral, none, think"),
])  # fmt: skip
def test_parsers_that_do_not_exist_are_refused_by_name(field, name, hint):
    with pytest.raises(ValidationError, match=f"{field}(.|\n)*unknown parser '{name}': {hint}"):
        AppConfig.model_validate({"model": "demo", field: name})
    assert AppConfig(model="demo", tool_parser="hermes", reasoning_parser="none").tool_parser == "hermes"
