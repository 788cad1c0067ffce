"""EngineMetrics: the one place where an engine's durations and counters are taken; EngineStats is its snapshot."""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection

from engine.outputs import Histogram
from engine.request import Request

TTFT_BOUNDS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
ITL_BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
E2EL_BOUNDS_S = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class DurationHistogram:
    """Durations in seconds, counted by upper bound."""

    def __init__(self, bounds_s: tuple[float, ...]) -> None:
        self._bounds_s = bounds_s
        self._counts = [0] * (len(bounds_s) + 1)
        self._total_s = 0.0

    def observe(self, duration_s: float, count: int = 1) -> None:
        self._counts[bisect_left(self._bounds_s, duration_s)] += count
        self._total_s += duration_s * count

    def snapshot(self) -> Histogram:
        return Histogram(self._bounds_s, tuple(self._counts), self._total_s)


class EngineMetrics:
    """Counters and histograms of one engine; the times it is given all come from the engine's injected clock."""

    def __init__(self) -> None:
        self.num_steps = 0
        self.num_prompt_tokens = 0
        self.num_generated_tokens = 0
        self.num_finished: Counter[str] = Counter()    # finish reason -> requests
        self.step_time_s: defaultdict[str, float] = defaultdict(float)   # part of a step -> total
        self.queue_time_s = DurationHistogram(E2EL_BOUNDS_S)
        self.ttft_s = DurationHistogram(TTFT_BOUNDS_S)
        self.itl_s = DurationHistogram(ITL_BOUNDS_S)
        self.e2el_s = DurationHistogram(E2EL_BOUNDS_S)

    def tokens_sampled(self, requests: Collection[Request], now_s: float) -> None:
        """Each of `requests` has gained a token."""
        self.num_generated_tokens += len(requests)
        previous: dict[float, int] = {}                # time of the token before -> requests; most have it in common
        for request in requests:
            last_s = request.last_token_time_s
            if last_s is None:
                self._first_token_sampled(request, now_s)
            else:
                previous[last_s] = previous.get(last_s, 0) + 1
            request.last_token_time_s = now_s
        for last_s, count in previous.items():
            self.itl_s.observe(now_s - last_s, count)

    def _first_token_sampled(self, request: Request, now_s: float) -> None:
        request.first_token_time_s = now_s
        self.num_prompt_tokens += request.num_prompt_tokens
        self.ttft_s.observe(now_s - request.arrival_time_s)
        if request.first_scheduled_time_s is not None:
            self.queue_time_s.observe(request.first_scheduled_time_s - request.arrival_time_s)

    def request_finished(self, request: Request, now_s: float) -> None:
        if request.finish_reason is not None:
            self.num_finished[request.finish_reason.value] += 1
        self.e2el_s.observe(now_s - request.arrival_time_s)
