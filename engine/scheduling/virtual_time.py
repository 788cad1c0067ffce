"""Virtual time of tenants: start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996), on tokens.

A tenant's virtual time is the tokens computed for it over its weight, so tenants with work keep level. The clock
is the least virtual time of a tenant with work; it never goes back. One that returns from idling goes on at the
clock, as a new one begins there: idling earns no credit, and work in advance is not forgiven. Much the same was
found for language models as the virtual token counter (Sheng et al., OSDI 2024).
"""

from collections.abc import Collection, Mapping


class VirtualTimes:
    """The virtual time of each tenant that has work, and of those idle ones that are still ahead of the clock."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = dict(weights)
        self._times: dict[str | None, float] = {}      # tenant -> weighted tokens
        self._clock = 0.0

    def __getitem__(self, tenant: str | None) -> float:
        return self._times[tenant]

    def __len__(self) -> int:
        return len(self._times)

    def enter(self, tenants: Collection[str | None]) -> None:
        """`tenants` are those who have work now. Others are forgotten once the clock has reached them."""
        known = [self._times[tenant] for tenant in tenants if tenant in self._times]
        if known:
            self._clock = max(self._clock, min(known))
        else:                                          # everyone known is idle: a busy period has ended
            self._clock = max([self._clock, *self._times.values()])
        times = {tenant: time for tenant, time in self._times.items() if time > self._clock or tenant in tenants}
        for tenant in tenants:
            times.setdefault(tenant, self._clock)
        self._times = times

    def charge(self, tenant: str | None, num_tokens: int) -> None:
        """Books tokens computed, or with a negative number tokens that will not be after all."""
        self._times[tenant] += num_tokens / self._weight(tenant)

    def _weight(self, tenant: str | None) -> float:
        return 1.0 if tenant is None else self._weights.get(tenant, 1.0)
