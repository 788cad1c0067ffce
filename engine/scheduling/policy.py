"""Policy: what a scheduling policy is. Its four questions are answered in `plan`, in one file per policy."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    from engine.scheduling.step_builder import StepBuilder


class PolicyParameters(BaseModel):
    """A policy's own keys of the YAML's `scheduler` section."""

    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True, slots=True)
class Limits:
    """What suits the device: taken by a policy for its own parameters of these names where they are null."""

    max_num_batched_tokens: int
    max_num_seqs: int


CPU_LIMITS = Limits(max_num_batched_tokens=512, max_num_seqs=64)
GPU_LIMITS = Limits(max_num_batched_tokens=8192, max_num_seqs=256)


class Policy:
    """Decides what each step computes; holds no bookkeeping, only its parameters and what it learns from steps.

    `plan` fills the step through StepBuilder, which owns every book. It is called once per step and must leave
    requests it does not want alone. `limits` is the most that a step of this policy holds: the memory plan sets the
    room for it aside.
    """

    Parameters: ClassVar[type[PolicyParameters]] = PolicyParameters
    default_block_size: ClassVar[int | None] = None      # None: the kernel's best for the device
    keeps_seats: ClassVar[bool] = False                  # finished requests hold their blocks until all have finished
    whole_prompts: ClassVar[bool] = False                # one beyond the limits is computed in one step too

    def __init__(self, parameters: PolicyParameters, limits: Limits) -> None:
        self.parameters = parameters
        self.limits = limits

    def plan(self, step: "StepBuilder") -> None:
        raise NotImplementedError
