"""Limits of a user's calls in tokens, bytes or other units of cost."""

import datetime
import operator
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from fractions import Fraction
from typing import Any, TypeAlias

from barrier_runtime.data.argument_types import kinds_checked
from barrier_runtime.data.schemas import Duration, as_duration
from barrier_runtime.operators.token_bucket import TokenBucket, check_rate
from barrier_runtime.operators.user_code import function_name, user_error
from barrier_runtime.state.errors import InvalidJob

_SECOND = datetime.timedelta(seconds=1)
_BURST = datetime.timedelta(milliseconds=100)
_REMEDY = "\n  Fix the function; then start the job again."


@kinds_checked
@dataclass(frozen=True)
class RateLimit:
    """At most `tokens` per `per`, over all subtasks: for services that count tokens, bytes or other units of cost.

    >>> RateLimit(100_000, per=timedelta(minutes=1), cost=lambda keys: 500 * len(keys))

    `cost`: tokens of a call, a whole number, or a function of the keys (lookup) or the cursor (`from_poll`); a call
    waits for its tokens. `reply_cost`: function of the reply, which returns the tokens that the call has really spent;
    the difference to `cost` is taken, or given back. `burst`: unused tokens of this time are kept. A call that costs
    more than that waits for all of these tokens, and the calls after it wait for the rest. Raises `InvalidJob`.
    """

    tokens: float
    per: Duration = _SECOND
    _: KW_ONLY
    cost: int | Callable[[Any], int] = 1
    reply_cost: Callable[[Any], int] | None = None
    burst: Duration = _BURST

    def __post_init__(self) -> None:
        if check_rate(self.tokens, "RateLimit: tokens") is None:
            raise InvalidJob("RateLimit: tokens=None: give a number above 0")
        for what in ("per", "burst"):
            object.__setattr__(self, what, as_duration(getattr(self, what), f"{what} of a RateLimit"))
        if _seconds(self.per) <= 0:
            raise InvalidJob(f"RateLimit: per={self.per!r}: give a time above 0")
        if _seconds(self.burst) < 0:
            raise InvalidJob(f"RateLimit: burst={self.burst!r}: give a time that is not negative")
        if not callable(self.cost):
            _whole(self.cost, "RateLimit: cost=")
        if self.reply_cost is not None and not callable(self.reply_cost):
            raise InvalidJob(f"RateLimit: reply_cost={self.reply_cost!r}: give a function of a reply, or None")

    def __str__(self) -> str:
        seconds = float(_seconds(self.per))
        what = "requests" if self.cost == 1 and self.reply_cost is None else "tokens"
        return f"{self.tokens:,.10g} {what} per {'second' if seconds == 1 else f'{seconds:g} s'}"


RateLimits: TypeAlias = RateLimit | Sequence[RateLimit] | None


def rate_limits(given: RateLimits, where: str) -> tuple[RateLimit, ...]:
    limits = () if given is None else (given,) if not isinstance(given, list | tuple) else tuple(given)
    if not all(isinstance(each, RateLimit) for each in limits):
        raise InvalidJob(f"{where}: rate_limit={given!r}: give a RateLimit, such as RateLimit(100), or a list of them")
    return limits


class CallLimits:
    """Buckets of the limits of a step; every limit holds. Times are those of a steady clock."""

    def __init__(self, limits: Sequence[RateLimit], name: str, subtask: int = 0, users: int = 1) -> None:
        self._limits = limits
        self._operator, self._subtask = name, subtask
        self._buckets = [
            TokenBucket(Fraction(limit.tokens) / _seconds(limit.per), users, _seconds(limit.burst)) for limit in limits
        ]

    def costs(self, call: Any) -> tuple[int, ...]:
        """Tokens of a call with the argument `call`, by limit."""
        return tuple(
            self._asked(limit.cost, call, "cost") if callable(limit.cost) else limit.cost for limit in self._limits
        )

    def spent(self, reply: Any) -> tuple[int | None, ...]:
        """Tokens that `reply` has cost, by limit; None: as expected. Any thread may call this method."""
        return tuple(
            None if limit.reply_cost is None else self._asked(limit.reply_cost, reply, "reply_cost")
            for limit in self._limits
        )

    def ready(self, now_ns: int, costs: Sequence[int]) -> bool:
        waiting = [bucket for bucket, cost in zip(self._buckets, costs, strict=True) if not bucket.ready(now_ns, cost)]
        return not waiting  # every bucket has been asked

    def due_ns(self, costs: Sequence[int] | None = None) -> int:
        """Time at which `ready(…, costs)` is True; None: costs are not known yet."""
        wanted = costs or [0] * len(self._buckets)
        due = [bucket.due_ns(cost) for bucket, cost in zip(self._buckets, wanted, strict=True)]
        return max((each for each in due if each is not None), default=0)

    def take(self, costs: Sequence[int]) -> None:
        for bucket, cost in zip(self._buckets, costs, strict=True):
            bucket.take(cost)

    def settle(self, costs: Sequence[int], spent: Sequence[int | None]) -> None:
        self.take([0 if each is None else each - cost for each, cost in zip(spent, costs, strict=True)])

    def _asked(self, function: Callable[[Any], int], argument: Any, what: str) -> int:
        said = f"{what}={function_name(function)} of a RateLimit"
        try:
            return _whole(function(argument), f"{said} returned ")
        except Exception as error:
            raise user_error(
                error, function=said, operator=self._operator, subtask=self._subtask, remedy=_REMEDY
            ) from error


def _whole(tokens: Any, what: str) -> int:
    try:
        number = -1 if isinstance(tokens, bool) else operator.index(tokens)
    except TypeError:
        number = -1
    if number < 0:
        raise InvalidJob(f"{what}{tokens!r}: use a whole number, 0 or more; for fractions, count in smaller units")
    return number


def _seconds(time: Any) -> Fraction:
    return Fraction(time // datetime.timedelta(microseconds=1), 1_000_000)
