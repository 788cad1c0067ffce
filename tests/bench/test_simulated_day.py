from itertools import pairwise

from bench.simulated_day import DAY_S, Day, run_day


def test_a_day_is_a_day_long_and_means_what_it_says():
    arrivals = list(Day(20_001, mean_prompt_len=50, mean_output_len=20, seed=1).arrivals())
    assert len(arrivals) == 20_001
    assert abs(arrivals[-1].arrival_s / DAY_S - 1) < 0.05
    assert abs(sum(arrival.prompt_len for arrival in arrivals) / 20_001 - 50) < 1
    assert abs(sum(arrival.output_len for arrival in arrivals) / 20_001 - 20) < 1
    assert min(arrival.prompt_len for arrival in arrivals) == 1 == min(arrival.output_len for arrival in arrivals)
    assert all(earlier.arrival_s < later.arrival_s for earlier, later in pairwise(arrivals))


def test_a_day_of_the_tiny_model_delivers_every_token():
    day = Day(200, mean_prompt_len=20, mean_output_len=10, seed=0)
    result = run_day(day, {"policy": "chunked"}, model="tiny", device="l4")
    assert (result.num_wrong, result.summary.num_refused, result.summary.num_requests) == (0, 0, 200)
    assert result.summary.num_output_tokens == sum(arrival.output_len for arrival in day.arrivals())
    assert 0 < result.tpot_ms["p50"] <= result.ttft_ms["p99"]
    assert "200 requests" in str(result)


def test_the_first_hours_of_a_day_are_those_of_the_whole_day():
    whole = list(Day(500, 20, 10, seed=3).arrivals())
    morning = list(Day(500, 20, 10, seed=3, hours=6.0).arrivals())
    assert morning == [arrival for arrival in whole if arrival.arrival_s <= 6 * 3600] != whole
