from bench.server_stats import ServerFigures, StatsSampler, figures_of, sample_of_prometheus, sample_of_stats
from engine.api import EngineStats

BEFORE = EngineStats(kv_blocks_total=10, num_generated_tokens=100, num_steps=5, step_time_s={"forward": 1.0})
DURING = EngineStats(
    num_requests_running=6,
    num_requests_waiting=2,
    kv_blocks_used=8,
    kv_blocks_total=10,
    num_preemptions=1,
    num_generated_tokens=130,
    prefix_cache_queries=40,
    prefix_cache_hits=10,
    num_steps=10,
    step_time_s={"forward": 1.5, "sample": 0.25},
)


def test_figures_take_gauges_from_the_run_and_counters_from_their_growth():
    samples = [sample_of_stats(stats) for stats in (BEFORE, DURING, DURING)]
    figures = figures_of(samples)
    assert figures == ServerFigures(
        kv_cache_usage_mean=0.8,
        kv_cache_usage_max=0.8,
        num_requests_running_mean=6.0,
        num_requests_running_max=6,
        num_requests_waiting_max=2,
        tokens_per_step=6.0,
        num_preemptions=1,
        prefix_cache_hit_rate=0.25,
        step_time_ms={"forward": 100.0},        # a part that the first sample lacks has no growth
    )


def test_a_system_that_tells_nothing_has_no_figures():
    assert figures_of([{}, {}, {}]) == ServerFigures()


def test_the_page_of_our_server_gives_the_same_sample_as_its_stats():
    from serve_app.metrics import exposition  # here: it imports ray

    page = exposition({"replica": DURING}, "demo").decode()
    assert sample_of_prometheus(page) == sample_of_stats(DURING)


def test_replicas_are_added_up_and_foreign_metrics_ignored():
    page = (
        'conveyor_kv_blocks_used{replica="a"} 3\n'
        'conveyor_kv_blocks_used{replica="b"} 4\n'
        'conveyor_step_seconds_total{replica="a",part="forward"} 0.5\n'
        'conveyor_step_seconds_total{replica="b",part="forward"} 0.25\n'
        "python_gc_objects_collected_total 9\n"
    )
    assert sample_of_prometheus(page) == {"kv_blocks_used": 7.0, "step_time_s.forward": 0.75}


async def test_the_sampler_reads_before_and_after_a_run():
    reads = iter([{"num_preemptions": 2.0}, {"num_preemptions": 5.0}])

    async def read():
        return next(reads)

    async with StatsSampler(read, interval_s=3600) as sampler:
        pass
    assert sampler.figures().num_preemptions == 3.0
