"""Length-aware batches by dynamic programming (TurboTransformers, Fang et al., PPoPP 2021).

Admission: only when the last batch has ended. The oldest `window` waiting requests are sorted by prompt length and
cut into batches of at most `batch_size` so that the padded prompts together cost least; of these batches the one
with the head of the queue starts. The next is cut anew, with those who have arrived.
Cost: of one batch, in the time of one prompt token, `cost_per_batch` + size × (longest + `cost_per_token_pair` ×
longest²). The paper measures a table of costs at start-up; a model makes the cuts the same on every machine.
Composition, reservation and shortage: as static, without waiting for others.
Starvation: the head of the queue is in the next batch.
"""

from collections.abc import Callable, Sequence
from itertools import islice

from pydantic import Field

from engine.request import Request
from engine.scheduling.policy import Limits
from engine.scheduling.request_batch import BatchParameters, RequestBatches
from engine.scheduling.step_builder import StepBuilder

Cost = Callable[[int, int], float]                     # (longest prompt, size of the batch) -> cost


class Turbo(RequestBatches):
    class Parameters(BatchParameters):
        window: int = Field(256, gt=0, description="oldest waiting requests that are sorted and cut into batches")
        cost_per_batch: float = Field(
            200,
            ge=0,
            allow_inf_nan=False,
            description="of a step, in prompt tokens; an A100 reads float16 weights in the time it computes 200 tokens",
        )
        cost_per_token_pair: float = Field(
            2e-5,
            ge=0,
            allow_inf_nan=False,
            description="of attention, in prompt tokens; 1 / (12 × hidden size), here 4096, by arithmetic",
        )

    def __init__(self, parameters: Parameters, limits: Limits) -> None:
        super().__init__(parameters, limits)
        self.window = parameters.window
        self.cost_per_batch = parameters.cost_per_batch
        self.cost_per_token_pair = parameters.cost_per_token_pair

    def next_batch(self, step: StepBuilder) -> Sequence[Request]:
        """The head's batch, in the order of the queue, in which it may be cut again."""
        queue = list(islice(step.waiting, self.window))
        by_length = sorted(range(len(queue)), key=lambda place: (queue[place].num_tokens, place))
        lengths = [queue[place].num_tokens for place in by_length]
        for start, end in cut(lengths, self.batch_size, self.cost):
            places = by_length[start:end]
            if 0 in places:
                return [queue[place] for place in sorted(places)]
        raise AssertionError("the cuts leave out the head of the queue")

    def cost(self, longest: int, size: int) -> float:
        return self.cost_per_batch + size * (longest + self.cost_per_token_pair * longest**2)


def cut(lengths: Sequence[int], max_size: int, cost: Cost) -> list[tuple[int, int]]:
    """The batches [start, end) of at most `max_size` into which ascending `lengths` fall at the least total cost.

    least[end] = min over start of least[start] + cost(lengths[end - 1], end - start); O(len(lengths) × max_size).
    Among equals the larger last batch is taken.
    """
    least = [0.0]
    last_start = [0]
    for end in range(1, len(lengths) + 1):
        starts = range(max(0, end - max_size), end)
        best = min(starts, key=lambda start: least[start] + cost(lengths[end - 1], end - start))
        least.append(least[best] + cost(lengths[end - 1], end - best))
        last_start.append(best)
    batches: list[tuple[int, int]] = []
    end = len(lengths)
    while end:
        batches.append((last_start[end], end))
        end = last_start[end]
    return batches[::-1]
