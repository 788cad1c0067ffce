"""How long a comparison will take, before it begins: rough speeds, good enough to plan an afternoon by.

They were read once, with the demo model on two cores, and are scaled by model size and threads. No figure of a
comparison comes from here.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from bench.peers.lineup import SYSTEMS
from bench.peers.turns import Turn
from bench.workloads import Workload

_DEMO_BYTES = 491_400_064
_DEMO_THREADS = 2
_DRAIN_S = 5.0


@dataclass(frozen=True, slots=True)
class Rough:
    startup_s: float
    many: float                            # output tokens/s of a burst
    one: float                             # of a single stream


_ROUGH: Mapping[str, Rough] = MappingProxyType({       # by peer
    "ours_engine": Rough(30.0, 50.0, 14.0),
    "transformers_static": Rough(30.0, 10.0, 5.0),
    "transformers_continuous": Rough(30.0, 10.0, 4.0),
    "vllm_cpu": Rough(120.0, 30.0, 5.5),
    "llama_cpp": Rough(5.0, 24.0, 19.0),
})
# A padded batch runs as long as its longest member: the longer the cap, the more of its tokens nobody asked for.
_STATIC_LOSS_PER_CAP = 1 / 384


def estimate_s(
    turns: Iterable[Turn], workloads: Mapping[tuple[int, str], Workload], *, model_bytes: int, num_threads: int
) -> float:
    """Seconds for all turns and for starting what takes them; `workloads` by repeat and label. No installation."""
    scale = model_bytes / _DEMO_BYTES * _DEMO_THREADS / num_threads
    total_s, loaded = 0.0, set()
    for turn in turns:
        entry = SYSTEMS[turn.system]
        rough = _ROUGH[entry.peer]
        start = (turn.system, turn.repeat if entry.is_server else 0)
        if start not in loaded:
            loaded.add(start)
            total_s += rough.startup_s + (_DRAIN_S if entry.is_server else 0.0)
        workload = workloads[turn.repeat, turn.workload]
        work_s = scale * workload.num_output_tokens / (rough.one if workload.name == "single" else rough.many)
        if entry.peer == "transformers_static" and workload.name == "burst":
            work_s *= 1 + workload.parameters["cap"] * _STATIC_LOSS_PER_CAP
        total_s += max(work_s, max(request.arrival_s for request in workload.requests))
    return total_s
