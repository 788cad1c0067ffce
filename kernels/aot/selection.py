"""Which launches a run compiles, and what each is called.

Models share most of what is not attention. A launch is compiled once and bears the name of the first model that makes
it, counted over all models: a run of a part names its launches as the whole run does.
"""

from kernels.aot.compile import cache_key
from kernels.aot.launches import Launch, launches
from kernels.aot.models import ARCHITECTURES, MODELS, NO_FP8_KV, ModelShape, is_quick


def every_pair() -> list[tuple[str, ModelShape]]:
    """(architecture, model) of everything that is shipped."""
    return [(arch, model) for model in MODELS for arch in ARCHITECTURES if not (model.fp8_kv and arch in NO_FP8_KV)]


def selected(quick: bool) -> dict[str, Launch]:
    """Cache key -> launch, in the order of the models; `quick`: what `make test` compiles."""
    first: dict[str, Launch] = {}
    wanted = set()
    for arch, model in every_pair():
        for launch in launches(arch, model):
            key = cache_key(launch)
            first.setdefault(key, launch)
            if is_quick(arch, model.name, launch.kind):
                wanted.add(key)
    return {key: launch for key, launch in first.items() if not quick or key in wanted}
