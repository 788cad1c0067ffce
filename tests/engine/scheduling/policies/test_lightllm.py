import random

import pytest

from engine.request import Request
from engine.scheduling.policies.lightllm import EXTRA_TOKENS, Claim, Lightllm, claim, predicted_peak
from engine.scheduling.policy import CPU_LIMITS
from tests.engine.scheduling.driver import Driver, scheduler
from tests.helpers import generation


def lightllm(num_blocks: int = 100, **options: object) -> Driver:
    return scheduler("lightllm", **{"num_blocks": num_blocks, "block_size": 1, "prefix_caching": False, **options})


def test_blocks_are_single_tokens_and_defaults_lightllms():
    policy = Lightllm(Lightllm.Parameters(), CPU_LIMITS)
    assert (policy.default_block_size, policy.prefill_budget, policy.router_token_ratio) == (1, 4096, 0.0)
    assert policy.router_max_new_token_len == 1024


# The predicted peak


def peak_by_simulation(claims: list[Claim]) -> int:
    """Tokens held at the worst step, where each request gains one a step and leaves after its last."""
    return max(
        sum(claim.held + step for claim in claims if claim.gain >= step)
        for step in range(max(claim.gain for claim in claims) + 1)
    )


@pytest.mark.parametrize("seed", range(20))
def test_predicted_peak_is_that_of_a_simulation(seed: int):
    generator = random.Random(seed)
    for _ in range(20):
        claims = [Claim(generator.randint(1, 60), generator.randint(0, 40)) for _ in range(generator.randint(1, 9))]
        assert predicted_peak(claims) == peak_by_simulation(claims)


def test_predicted_peak_by_hand():
    assert predicted_peak([]) == 0
    assert predicted_peak([Claim(10, 5)]) == 15
    assert predicted_peak([Claim(10, 5), Claim(3, 20)]) == 23      # 3 + 20 alone; 2 · 5 + 13 together is no more
    assert predicted_peak([Claim(30, 5), Claim(3, 20)]) == 43


# Admission


@pytest.mark.parametrize(("max_total_token_num", "num_started"), [(44, 1), (45, 2)])
def test_request_starts_if_the_predicted_peak_stays_below_the_total(max_total_token_num: int, num_started: int):
    # Each holds 8 + 1 and gains 8 - 1 + 6: both together peak at 2 · 13 + 2 · 9 = 44.
    engine = lightllm(max_total_token_num=max_total_token_num)
    engine.add(8, max_tokens=8), engine.add(8, max_tokens=8)
    assert len(engine.step()) == num_started


def test_total_is_that_of_the_pool_where_it_is_not_given():
    for num_blocks, num_started in ((44, 1), (45, 2)):
        engine = lightllm(num_blocks)
        engine.add(8, max_tokens=8), engine.add(8, max_tokens=8)
        assert len(engine.step()) == num_started


def test_prediction_sees_that_the_short_end_before_the_long():
    # b: 9 held, 7 more. a: 11 held, 29 more. The peak is 11 + 29 when a ends alone, not 56, the sum of the maxima.
    engine = lightllm(41)
    a, b = engine.add(10, max_tokens=24), engine.add(8, max_tokens=2)
    assert engine.step() == {a: 10, b: 8}


def test_nobody_overtakes_the_head():
    engine = lightllm(50)
    a, b, c = engine.add(8, max_tokens=20), engine.add(20, max_tokens=20), engine.add(1, max_tokens=1)
    assert engine.steps(2) == [{a: 8}, {a: 1}]
    assert engine.waiting == [b, c]


def test_alone_a_request_may_have_all_there_is():
    engine = lightllm(20)
    a = engine.add(10, max_tokens=1000)
    assert engine.step() == {a: 10}
    engine.run()
    assert len(engine.output(a)) == 11


def request(num_prompt: int, max_tokens: int, num_output: int) -> Request:
    prompt = [1] * num_prompt
    return Request(generation("a", prompt, max_tokens), 0.0, token_ids=[*prompt, *[2] * num_output])


@pytest.mark.parametrize(
    ("num_output", "busy", "idle"),
    [
        (0, 99, 9),
        (1, 98, 8),
        (9, 90, 0),
        (10, 89, 0),                                   # 1.1 · 10 = 11 expected, and this step's is the eleventh
        (40, 59, 3),
        (95, 4, 4),                                    # never more than max_tokens
        (99, 0, 0),
    ],
)
def test_output_is_expected_from_max_tokens_when_busy_else_from_what_came_so_far(num_output: int, busy: int, idle: int):
    running = request(5, 100, num_output)
    assert claim(running, 1000, None) == Claim(5 + num_output + 1, busy + EXTRA_TOKENS)
    assert claim(running, 1000, 10) == Claim(5 + num_output + 1, idle + EXTRA_TOKENS)


def test_context_bounds_the_expected_output():
    assert claim(request(5, 100, 1), 30, None) == Claim(7, 25 - 1 - 1 + EXTRA_TOKENS)


@pytest.mark.parametrize(("ratio", "num_running"), [(0.10, 1), (0.12, 2)])
def test_pool_is_busy_from_the_ratio_on(ratio: float, num_running: int):
    engine = lightllm(100, router_token_ratio=ratio, router_max_new_token_len=5)
    engine.add(11, max_tokens=60)
    engine.step()
    engine.add(11, max_tokens=60)                      # 11 of 100 tokens are in use
    engine.step()
    assert len(engine.running) == num_running


@pytest.mark.parametrize(("ignore_eos", "num_running"), [(True, 1), (False, 2)])
def test_length_is_known_where_the_end_is_ignored(ignore_eos: bool, num_running: int):
    engine = lightllm(100, router_token_ratio=1.0, router_max_new_token_len=5)
    for name in "ab":
        engine.scheduler.add(Request(generation(name, range(11), 60, {"ignore_eos": ignore_eos}), 0.0))
    engine.step()
    assert len(engine.running) == num_running


# Composition


def test_prompts_go_first_in_steps_of_their_own():
    engine = lightllm(chunked_prefill_size=8)
    a = engine.add(4, max_tokens=10)
    assert engine.steps(2) == [{a: 4}, {a: 1}]
    b, c = engine.add(11, max_tokens=3), engine.add(3, max_tokens=3)
    assert engine.steps(3) == [{b: 8}, {b: 3, c: 3}, {a: 1, b: 1, c: 1}]


def test_whole_prompts_where_chunks_are_off():
    engine = lightllm(200, chunked_prefill_size=0)     # the device's 64 tokens a step
    a, b, c = engine.add(40, max_tokens=4), engine.add(30, max_tokens=4), engine.add(20, max_tokens=4)
    assert engine.steps(3) == [{a: 40}, {b: 30, c: 20}, {a: 1, b: 1, c: 1}]
    d = engine.add(70, max_tokens=1)                   # more than a step holds
    assert engine.steps(2) == [{d: 64}, {d: 6}]


def test_requests_are_limited():
    engine = lightllm(running_max_req_size=1)
    a, b = engine.add(3, max_tokens=2), engine.add(3, max_tokens=2)
    assert engine.steps(4) == [{a: 3}, {a: 1}, {b: 3}, {b: 1}]


# Shortage


def test_newest_is_paused_when_the_prediction_was_too_low():
    engine = lightllm(37, router_token_ratio=1.0, router_max_new_token_len=2)
    a, b = engine.add(8, max_tokens=20), engine.add(8, max_tokens=20)
    assert engine.step() == {a: 8, b: 8}
    assert engine.steps(10) == [{a: 1, b: 1}] * 10
    assert engine.step() == {a: 1}                     # a takes the last block of 37; b has none and gives up its 18
    assert (engine.waiting, engine.scheduler.num_preemptions) == ([b], 1)
    engine.run()
    assert (len(engine.output(a)), len(engine.output(b))) == (20, 20)
