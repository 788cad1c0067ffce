"""One run of the guard, in a process of its own: what it loads is gone with it."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor


def measure(*, tiny: bool, rounds: int, seed: int) -> dict[str, list[float]]:
    """ratio -> what each round found"""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_measure_here, tiny, rounds, seed).result()


def _measure_here(tiny: bool, rounds: int, seed: int) -> dict[str, list[float]]:
    from engine.config import prepare_process

    prepare_process()
    from bench.guard.trials import TINY, Size, Trials  # with it comes torch, which reads the environment

    trials = Trials(TINY if tiny else Size(), seed)
    try:
        return trials.rounds(rounds)
    finally:
        trials.close()
