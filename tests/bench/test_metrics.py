import pytest

from bench.metrics import Distribution, Objective, RequestRecord, summarize

ANY = Objective(ttft_s=1e9, tpot_s=1e9)


def record(index=0, *, prompt=10, output=3, arrival=0.0, deliveries=(1.0, 1.5, 2.0), end=None, error=None):
    end = deliveries[-1] if end is None else end
    return RequestRecord(index, prompt, output, arrival, tuple(deliveries), end, error)


def test_latencies_of_one_request_count_from_its_due_time():
    one = record(arrival=0.5, output=5)
    assert one.ttft_s == pytest.approx(0.5)
    assert one.e2el_s == pytest.approx(1.5)
    assert one.tpot_s == pytest.approx(1.0 / 4)          # five tokens came in three pieces
    assert one.gaps_s == pytest.approx([0.5, 0.5])


def test_a_single_token_has_no_time_per_further_token():
    assert record(output=1, deliveries=(1.0,)).tpot_s is None


def test_rates_count_over_the_time_until_the_last_request_ended():
    summary = summarize([record(0), record(1, arrival=1.0, deliveries=(2.0, 3.0, 3.5), end=4.0)], ANY)
    assert summary.duration_s == 4.0
    assert summary.output_tokens_per_s == pytest.approx(6 / 4)
    assert summary.total_tokens_per_s == pytest.approx(26 / 4)
    assert summary.requests_per_s == pytest.approx(2 / 4)
    assert (summary.num_requests, summary.num_failed) == (2, 0)
    assert summary.ttft_ms == Distribution(1000.0, 1000.0, 1000.0, 1000.0)
    assert summary.e2el_ms is not None
    assert summary.e2el_ms.mean == pytest.approx(2250.0)


def test_failed_requests_count_as_such_and_take_time_but_add_nothing_else():
    failed = record(1, output=2, deliveries=(0.1, 0.2), end=8.0, error="HTTP 500: oh")
    summary = summarize([record(0), failed], ANY)
    assert (summary.num_failed, summary.num_output_tokens, summary.num_prompt_tokens) == (1, 3, 10)
    assert summary.duration_s == 8.0
    assert summary.itl_ms is not None
    assert summary.itl_ms.p50 == pytest.approx(500.0)


def test_goodput_needs_both_objectives():
    records = [
        record(0),                                                     # TTFT 1.0, TPOT 0.5
        record(1, deliveries=(1.1, 1.2, 1.3)),                         # TTFT too late
        record(2, deliveries=(0.5, 2.0, 2.5)),                         # TPOT too long
        record(3, output=1, deliveries=(0.5,)),                        # no TPOT to miss
        record(4, deliveries=(0.5, 0.6, 0.7), error="cut off"),        # failed
    ]
    summary = summarize(records, Objective(ttft_s=1.0, tpot_s=0.5))
    assert summary.duration_s == 2.5
    assert summary.goodput_requests_per_s == pytest.approx(2 / 2.5)


def test_percentiles_interpolate():
    latency = Distribution.of_seconds([i / 1000 for i in range(101)])
    assert latency is not None
    assert (latency.mean, latency.p50, latency.p90, latency.p99) == pytest.approx((50, 50, 90, 99))


def test_a_run_in_which_everything_failed_has_no_latencies():
    summary = summarize([record(deliveries=(), end=1.0, error="HTTP 503")], ANY)
    assert (summary.ttft_ms, summary.tpot_ms, summary.output_tokens_per_s) == (None, None, 0.0)


def test_a_record_survives_json_to_a_tenth_of_a_millisecond():
    one = record(arrival=0.12345678, deliveries=(1.23456789, 2.0), error="cut off")
    again = RequestRecord.from_json(one.to_json())
    assert again.delivery_s == (1.2346, 2.0)
    assert (again.index, again.num_prompt_tokens, again.error) == (0, 10, "cut off")
