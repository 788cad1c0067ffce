import pytest

from engine.api import ConfigError
from serve_app.config import AppConfig
from serve_app.placement import Placement, place

CPU_NODE = {"CPU": 8.0, "memory": 1e10}
GPU_NODE = {"CPU": 16.0, "GPU": 4.0}


def config(**settings):
    return AppConfig(model="demo", **settings)


def test_gpu_is_taken_where_there_is_one():
    assert place(config(), [CPU_NODE, GPU_NODE]) == Placement("cuda", {"CPU": 1, "GPU": 1}, max_replicas=4)


def test_cpu_engine_takes_all_cores_of_one_node_and_stays_alone():
    assert place(config(), [CPU_NODE, {"CPU": 4.0}]) == Placement("cpu", {"CPU": 8}, max_replicas=1)


def test_cpu_can_be_asked_for_beside_a_gpu():
    assert place(config(device="cpu"), [GPU_NODE]).bundle == {"CPU": 16}


def test_num_threads_is_what_the_bundle_holds():
    assert place(config(num_threads=2), [CPU_NODE]).bundle == {"CPU": 2}


@pytest.mark.parametrize(
    ("settings", "nodes", "message"),
    [
        ({"device": "cuda"}, [CPU_NODE], "device: 'cuda' was asked for, but no node"),
        ({"num_threads": 9}, [CPU_NODE], "num_threads: 9 asked for; the largest node has 8 CPUs"),
        ({}, [{"memory": 1e9}], "device: no node of the Ray cluster has a CPU"),
    ],
)
def test_what_no_node_can_give_is_refused(settings, nodes, message):
    with pytest.raises(ConfigError) as raised:
        place(config(**settings), nodes)
    assert str(raised.value).startswith(message)
