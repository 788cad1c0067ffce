"""The registry of policies: a name, a file, a class. Adding a policy adds one line here."""

from importlib import import_module

from engine.scheduling.policy import Policy, PolicyParameters

_POLICIES = {
    "static": "Static",
    "static_impatient": "StaticImpatient",
    "packed_static": "PackedStatic",
    "turbo": "Turbo",
    "cellular": "Cellular",
    "orca": "Orca",
    "tgi": "Tgi",
    "ray_serve_2023": "RayServe2023",
    "vllm_v0": "VllmV0",
    "chunked": "Chunked",
    "splitfuse": "Splitfuse",
    "lightllm": "Lightllm",
    "trtllm_no_evict": "TrtllmNoEvict",
    "trtllm_max_utilization": "TrtllmMaxUtilization",
    "sglang": "Sglang",
    "fair": "Fair",
}


def policy_names() -> tuple[str, ...]:
    return tuple(_POLICIES)


def policy_class(name: str) -> type[Policy]:
    """The class of the policy `name`. Raises KeyError for a name that is not registered."""
    policy: type[Policy] = getattr(import_module(f"{__name__}.{name}"), _POLICIES[name])
    return policy


def parameters_class(name: str) -> type[PolicyParameters]:
    return policy_class(name).Parameters
