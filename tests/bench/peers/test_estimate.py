from bench.peers.estimate import estimate_s
from bench.peers.turns import Turn
from tests.bench.peers.fakes import burst, single

DEMO = {"model_bytes": 491_400_064, "num_threads": 2}


def seconds(*turns, **settings):
    workloads = {(repeat, label): w for repeat in (0, 1) for label, w in (("burst 8", burst(8)), ("single", single()))}
    return estimate_s(turns, workloads, **(DEMO | settings))


def test_a_resident_is_loaded_once_and_a_server_in_each_repeat():
    peer = [Turn(repeat, "vllm_cpu_float32", "burst 8") for repeat in (0, 1)]
    server = [Turn(repeat, "ours_http_int8", "burst 8") for repeat in (0, 1)]
    assert seconds(*peer) < 2 * seconds(peer[0])
    assert seconds(*server) == 2 * seconds(server[0])


def test_a_larger_model_takes_longer_and_more_threads_less():
    turn = Turn(0, "llama_cpp_q8_0_16", "single")
    assert seconds(turn, model_bytes=10 * DEMO["model_bytes"]) > seconds(turn) > seconds(turn, num_threads=8)
