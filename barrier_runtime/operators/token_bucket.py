"""Token bucket: a limit of rows, requests or tokens per second, exact over any time.
Pure. Whole numbers avoid rounding errors.
"""

import math
from fractions import Fraction

from barrier_runtime.state.errors import InvalidJob

_SECOND_NS = 1_000_000_000
_BURST_S = Fraction(1, 10)  # tokens of this time wait at most
_PORTION_S = Fraction(1, 100)  # tokens of this time are taken together


class TokenBucket:
    """`per_second` tokens, shared equally by `users` buckets.
    In `t` seconds a bucket gives at most `(t + burst_s) * per_second / users` tokens and two more; `ready` adds the
    highest cost of a call."""

    def __init__(self, per_second: float | Fraction, users: int = 1, burst_s: Fraction = _BURST_S) -> None:
        self._total = Fraction(per_second)
        self._burst_s = burst_s
        self._began_ns: int | None = None
        self._now_ns = 0  # of the last call
        self._taken = 0  # since `_began_ns`
        self._is_first = False
        self._share_with(users)

    def _share_with(self, users: int) -> None:
        self.users = users
        share = self._total / users
        self._tokens, self._time_ns = share.numerator, share.denominator * _SECOND_NS
        self._most = max(1, math.ceil(share * self._burst_s))
        self._portion = max(1, math.floor(share * _PORTION_S))

    def share_with(self, users: int, now_ns: int) -> None:
        """Changes the number of users from `now_ns` on. Waiting tokens are lost."""
        if users != self.users:
            self._share_with(users)
            self._began_ns, self._taken, self._is_first = now_ns, 0, False
            self._now_ns = now_ns

    def tokens(self, now_ns: int) -> int:
        """Tokens that may be taken now: 0, or a portion and more. The first call gives the first token."""
        there = self._there(now_ns)
        return there if there >= self._portion or self._is_first else 0

    def ready(self, now_ns: int, cost: int) -> bool:
        """Returns whether `take(cost)` is allowed. A cost above the burst needs a full bucket, and later calls pay the
        rest. The first call is always allowed."""
        return self._there(now_ns) >= min(cost, self._most) or self._is_first

    def _there(self, now_ns: int) -> int:
        """Below 0: a debt."""
        if self._began_ns is None:
            self._began_ns, self._taken, self._is_first = now_ns, -1, True
        elif now_ns < self._now_ns:  # a clock set back stops nothing
            self._began_ns -= self._now_ns - now_ns
        self._now_ns = now_ns
        there = (now_ns - self._began_ns) * self._tokens // self._time_ns - self._taken
        if there > self._most:
            self._taken += there - self._most
            there = self._most
        return there

    def take(self, tokens: int) -> None:
        """`tokens` below 0 are given back."""
        self._taken += tokens
        self._is_first = self._is_first and not tokens

    def due_ns(self, cost: int | None = None) -> int | None:
        """Time at which `ready(…, cost)` is True, or `tokens` above 0; None before the first call."""
        if self._began_ns is None:
            return None
        needed = self._portion if cost is None else min(cost, self._most)
        wanted = self._taken + (min(needed, 1) if self._is_first else needed)
        return self._began_ns + -(-wanted * self._time_ns // self._tokens)


def check_rate(per_second: object, what: str) -> float | None:
    if per_second is None:
        return None
    if isinstance(per_second, bool) or not isinstance(per_second, int | float) or not 0 < per_second < math.inf:
        raise InvalidJob(f"{what}={per_second!r}: give a number above 0, or None for no limit")
    return float(per_second)
