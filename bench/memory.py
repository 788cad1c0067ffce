"""Peak memory of a process and its descendants, as PSS: pages shared between them count once."""

import asyncio

import psutil


def tree_pss_bytes(pid: int) -> int:
    """PSS of the process and all its descendants; those that end meanwhile count nothing."""
    total = 0
    try:
        process = psutil.Process(pid)
        members = [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0
    for member in members:
        try:
            total += member.memory_full_info().pss
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return total


class MemorySampler:
    """The peak of `tree_pss_bytes` while it is entered; the interval is long because a sample costs milliseconds."""

    def __init__(self, pid: int | None, *, interval_s: float = 5.0) -> None:
        self._pid = pid
        self._interval_s = interval_s
        self._peak_bytes = 0

    @property
    def peak_bytes(self) -> int | None:
        return self._peak_bytes or None

    async def __aenter__(self) -> "MemorySampler":
        self._task = asyncio.create_task(self._keep_sampling())
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._sample()

    async def _keep_sampling(self) -> None:
        while True:
            self._sample()
            await asyncio.sleep(self._interval_s)

    def _sample(self) -> None:
        if self._pid is not None:
            self._peak_bytes = max(self._peak_bytes, tree_pss_bytes(self._pid))
