from engine.metrics import EngineMetrics
from engine.request import Request
from tests.helpers import generation


def requests(num: int) -> list[Request]:
    return [Request(generation(f"r{i}", [1, 2, 3]), arrival_time_s=float(i)) for i in range(num)]


def test_first_tokens_count_their_prompts_and_time_from_arrival():
    metrics = EngineMetrics()
    metrics.tokens_sampled(requests(2), now_s=4.0)
    assert (metrics.num_generated_tokens, metrics.num_prompt_tokens) == (2, 6)
    assert metrics.ttft_s.snapshot().total == 4.0 + 3.0
    assert sum(metrics.itl_s.snapshot().counts) == 0


def test_later_tokens_are_timed_from_each_request_s_own_last_one():
    metrics = EngineMetrics()
    early, late, both = requests(3)
    metrics.tokens_sampled([early, both], now_s=4.0)
    metrics.tokens_sampled([late], now_s=5.0)
    metrics.tokens_sampled([early, late, both], now_s=5.5)
    itl_s = metrics.itl_s.snapshot()
    assert metrics.num_generated_tokens == 6
    assert itl_s.total == 1.5 + 0.5 + 1.5
    assert dict(zip([*itl_s.bounds, None], itl_s.counts, strict=True)) == dict.fromkeys([*itl_s.bounds, None], 0) | {
        0.5: 1, 2.5: 2,
    }  # fmt: skip
