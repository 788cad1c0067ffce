"""What a sweep over policies runs: workloads, and each policy's parameters, as the original harness had them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from bench.policies.runs import Case
from bench.workloads import SETTINGS, Burst, Poisson
from engine.scheduling.policies import parameters_class, policy_names


@dataclass(frozen=True, slots=True)
class Harness:
    """Per cap: the static batch that the pool holds at full length, and the tokens that a quota may count."""

    batch_size: Mapping[int, int]
    budget_tokens: Mapping[int, int]
    own: Mapping[str, Mapping[str, Any]]         # policy -> parameters that the harness gave it alone
    capacity_tokens: int | None = None           # of the KV pool; None: what the device's memory allows

    @property
    def caps(self) -> tuple[int, ...]:
        return tuple(self.batch_size)


# The seed's are those of Anyscale's benchmark of 2023; batch size × (512 + cap) is its budget, give or take a block.
# The CPU's are made after it: a pool of 2,048 tokens holds some 20 of its 48 requests at once, as an A100-40GB holds
# some 18 of OPT-13B's, and static batches are as large as it can hold at full length, at most 16.
HARNESSES: Mapping[str, Harness] = MappingProxyType({
    "seed": Harness(
        {32: 16, 128: 12, 512: 8, 1536: 4},
        {32: 8700, 128: 7500, 512: 8100, 1536: 8100},
        {"ray_serve_2023": {"max_waiting_tokens": 7}},
    ),
    "cpu": Harness(
        {8: 16, 32: 16, 128: 10, 384: 4},
        {8: 2048, 32: 2048, 128: 2048, 384: 2048},
        {"ray_serve_2023": {"max_waiting_tokens": 7}},
        capacity_tokens=2048,
    ),
})
REPEATED = ("static", "orca", "vllm_v0", "chunked")      # measured several times on a real device, taking turns


def reservation(case: Case) -> str:
    """What a request holds before it needs it, in a word."""
    parameters = parameters_class(case.policy)
    if "reserve" not in parameters.model_fields or case.policy == "trtllm_no_evict":     # it promises, and holds pages
        return "what it needs"
    return "the context" if case.parameters.get("reserve") == "max_model_len" else "its maximum"


def burst(setting: str, cap: int) -> Burst:
    spec = SETTINGS[setting]["burst"]
    assert isinstance(spec, Burst)
    return replace(spec, cap=cap)


def poisson(setting: str, rate: float) -> Poisson:
    spec = SETTINGS[setting]["poisson"]
    assert isinstance(spec, Poisson)
    return replace(spec, rate=rate)


def cases(setting: str, cap: int, only: Sequence[str] = (), *, both_reserves: bool = True) -> list[Case]:
    """Every policy, or those of `only`, as `setting` runs it at `cap`; one that reserves in both its ways.

    The first way is that of each request's own max_tokens, which carries the policy's plain name.
    """
    harness = HARNESSES[setting]
    found = []
    for policy in only or policy_names():
        own = parameters_class(policy).model_fields
        parameters: dict[str, Any] = dict(harness.own.get(policy, {}))
        if "batch_size" in own:
            parameters["batch_size"] = harness.batch_size[cap]
        if "max_batch_total_tokens" in own:
            parameters["max_batch_total_tokens"] = harness.budget_tokens[cap]
        found.append(Case(policy, parameters))
        if both_reserves and "reserve" in own:
            found.append(Case(policy, {**parameters, "reserve": "max_model_len"}, "max_model_len"))
    return found
