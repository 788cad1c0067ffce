"""SimulatedRunner: the runner's place in the step loop, taken by a cost model and a virtual clock. No tensors."""

from engine.scheduling.plan import Done, StepPlan, StepResult
from engine.simulation.clock import VirtualClock
from engine.simulation.composition import step_rows
from engine.simulation.cost import StepCost

TOKEN_ID = 0               # every token sampled: what a simulated request says does not matter, that it does, does


class SimulatedRunner:
    """Carries a plan out by letting its cost pass. Deterministic: equal plans, equal times, equal tokens."""

    def __init__(self, cost: StepCost, clock: VirtualClock, block_size: int) -> None:
        self._cost = cost
        self._clock = clock
        self._block_size = block_size

    def sample(self, plan: StepPlan) -> dict[str, int]:
        """The tokens of `plan`, after the time that they take."""
        self._clock.advance(self._cost.step_s(step_rows(plan, self._block_size)))
        return dict.fromkeys(plan.sampling, TOKEN_ID)

    def execute(self, plan: StepPlan) -> StepResult:
        begun_s = self._clock.now_s
        sampled = self.sample(plan)
        return StepResult(sampled, times_s={"forward": self._clock.now_s - begun_s})

    def submit(self, plan: StepPlan) -> Done:
        return Done(self.execute(plan))
