"""`Stream.lookup`: adds columns from another system."""

import datetime
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypedDict, overload

from barrier_runtime.api.arguments import (
    with_errors,
)
from barrier_runtime.api.steps import Outputs, S, UnkeyedSteps, one_or_all
from barrier_runtime.data.schemas import Duration, SchemaLike
from barrier_runtime.graph.logical import StepNode
from barrier_runtime.launch.outcome import plain_errors
from barrier_runtime.operators.outputs.side_outputs import OnError, side_schemas
from barrier_runtime.operators.retry import Retry
from barrier_runtime.operators.user_code import function_name

if TYPE_CHECKING:
    from typing_extensions import Required, Unpack

    from barrier_runtime.operators.lookups.operator import HowMissing
    from barrier_runtime.operators.lookups.replies import Cache
    from barrier_runtime.operators.rate_limit import RateLimits

    class Lookup(TypedDict, total=False):
        key: Required[str | Sequence[str]]
        schema: Required[SchemaLike]
        capacity: int
        timeout: Duration
        ordered: bool
        retry: Retry | None
        cache: Cache | None
        max_batch: int
        max_requests: int | None
        max_requests_per_second: float | None
        rate_limit: RateLimits
        linger: Duration


_LOOKUP_TIMEOUT = datetime.timedelta(seconds=10)
_LINGER = datetime.timedelta(milliseconds=1)


@plain_errors
class LookupSteps(UnkeyedSteps[S]):
    @overload
    def lookup(
        self,
        name: str,
        fetch_many: Any,
        *,
        how: Literal["left", "inner"] = "left",
        on_error: Literal["fail", "skip"] = "fail",
        **more: "Unpack[Lookup]",
    ) -> S: ...

    @overload
    def lookup(
        self,
        name: str,
        fetch_many: Any,
        *,
        how: "HowMissing" = "left",
        on_error: OnError = "fail",
        **more: "Unpack[Lookup]",
    ) -> Outputs[S]: ...

    def lookup(
        self,
        name: str,
        fetch_many: Any,
        *,
        key: str | Sequence[str],
        schema: SchemaLike,
        capacity: int = 1_000,
        timeout: Duration = _LOOKUP_TIMEOUT,
        ordered: bool = False,
        how: "HowMissing" = "left",
        retry: Retry | None = None,
        cache: "Cache | None" = None,
        on_error: OnError = "fail",
        max_batch: int = 100,
        max_requests: int | None = None,
        max_requests_per_second: float | None = None,
        rate_limit: "RateLimits" = None,
        linger: Duration = _LINGER,
    ) -> S | Outputs[S]:
        """Adds the columns `schema`, which `fetch_many` finds for the value of `key` in another system.

        Other rows are processed meanwhile (docs/lookup.md). Each row has one result, also across failures of the job.

        `fetch_many(keys)` gets a list of distinct values (tuples, if `key` names several columns) and returns a list
        with a row (dict) or None for each key, a dict of key to row, or a `pyarrow.Table` with the key's column; an
        exception in the place of a row fails that key alone. `fetch_many` is an `async def`, a plain function (which
        runs on threads), or a class with such a method `fetch_many`, and `open` and `close` for its connections.

        `capacity`: pending rows per subtask; at the limit the stream waits, but checkpoints do not. `timeout`: of one
        call, which has up to `max_batch` keys; at most `max_requests` calls run at once (plain functions: 16), and all
        subtasks together begin at most `max_requests_per_second` calls per second, repetitions included; `rate_limit`
        (`RateLimit`) counts tokens of calls. A key waits up to `linger` for other keys. `ordered`: rows keep their
        order. `how`: rows without a match have nulls ("left"), are dropped ("inner"), or form a separate stream
        ("side"). `retry`: failures that are retried. `cache`: keeps replies. `on_error` as in `map`, for final
        failures.

        >>> profiles = orders.lookup("profile", fetch_profiles, key="user", schema={"name": str, "city": str})
        """

        from barrier_runtime.operators.joins.broadcast import enriched_schema
        from barrier_runtime.operators.lookups.operator import MISSES, LookupOperator, lookup_settings

        where = f"lookup {name!r}"
        settings = lookup_settings(
            where,
            fetch_many,
            self.schema,
            key=key,
            schema=schema,
            capacity=capacity,
            timeout=timeout,
            ordered=ordered,
            how=how,
            retry=retry,
            cache=cache,
            on_error=on_error,
            max_batch=max_batch,
            max_requests=max_requests,
            max_requests_per_second=max_requests_per_second,
            rate_limit=rate_limit,
            linger=linger,
        )
        known, output = self.schema, None
        if known is not None:
            output = enriched_schema(known, settings.schema, settings.on, where)
        sides = {**({MISSES: known} if how == "side" else {}), **side_schemas(None, on_error, where)}
        limits = " and ".join(map(str, settings.book.limits))
        limit = limits and f", at most {limits} over all subtasks"
        node = StepNode(
            name,
            "lookup",
            (self._as_input(),),
            partial(LookupOperator, function=fetch_many, settings=settings),
            output,
            stateful=True,
            describe=with_errors(f"{function_name(fetch_many)} by {', '.join(settings.on)}{limit}", on_error),
            timeless=True,
            begins_chain=True,
            by_wall_clock="rows are looked up in another system, whose answers change",
            side_outputs=sides,
        )
        streams: S | Outputs[S] = one_or_all(self._added(node))
        return streams
