"""Token bucket: a limit of rows or requests per second, exact over any time.
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
    In `t` seconds a bucket gives at most `(t + 0.1) * per_second / users` tokens and two more."""

    def __init__(self, per_second: float, users: int = 1) -> None:
        self._total = Fraction(per_second)
        self._began_ns: int | None = None
        self._taken = 0  # since `_began_ns`
        self._share_with(users)

    def _share_with(self, users: int) -> None:
        self.users = users
        share = self._total / users
        self._tokens, self._time_ns = share.numerator, share.denominator * _SECOND_NS
        self._most = max(1, math.ceil(share * _BURST_S))
        self._portion = max(1, math.floor(share * _PORTION_S))

    def share_with(self, users: int, now_ns: int) -> None:
        """Changes the number of users from `now_ns` on. Waiting tokens are lost."""
        if users != self.users:
            self._share_with(users)
            self._began_ns, self._taken = now_ns, 0

    def tokens(self, now_ns: int) -> int:
        """Tokens that may be taken now: 0, or a portion and more. The first call gives the first token."""
        if self._began_ns is None:
            self._began_ns, self._taken = now_ns, -1
        there = (now_ns - self._began_ns) * self._tokens // self._time_ns - self._taken
        if there > self._most:
            self._taken += there - self._most
            there = self._most
        return there if there >= self._portion or self._is_first else 0

    @property
    def _is_first(self) -> bool:
        return self._taken == -1

    def take(self, tokens: int) -> None:
        self._taken += tokens

    def due_ns(self) -> int | None:
        """Time at which `tokens` is above 0; None before the first call."""
        if self._began_ns is None:
            return None
        wanted = self._taken + (1 if self._is_first else self._portion)
        return self._began_ns + -(-wanted * self._time_ns // self._tokens)


def check_rate(per_second: object, what: str) -> float | None:
    if per_second is None:
        return None
    if isinstance(per_second, bool) or not isinstance(per_second, int | float) or not 0 < per_second < math.inf:
        raise InvalidJob(f"{what}={per_second!r}: give a number above 0, or None for no limit")
    return float(per_second)
