"""Flow of `barrier-runtime demo`: orders of twelve shops, revenue per second, best seconds of a shop."""

from datetime import timedelta
from typing import Any

from barrier_runtime.api.dataflow import Dataflow
from barrier_runtime.connectors.files.sink.sink import JsonlSink
from barrier_runtime.operators.aggregation.functions import count, sum_
from barrier_runtime.operators.state.value import ValueState
from barrier_runtime.operators.windows.assigners import Tumbling

SHOPS = 12


class Record:
    """Best second of a shop so far."""

    best = ValueState(int, default=0)

    def process(self, shop: int, second: dict[str, Any], ctx: Any) -> Any:
        if second["revenue"] > self.best.value:
            self.best.value = second["revenue"]
            yield {"shop": shop, "at": second["window_start"], "revenue": second["revenue"]}


def demo_flow(output: str, rows_per_second: float, rows: int | None) -> Dataflow:
    """Writes `seconds` and `records` below the folder `output`; endless without `rows`."""
    flow = Dataflow("demo")
    orders = flow.rate("orders", rows_per_second, rows, keys=SHOPS, splits=2, event_time="intended_at")
    seconds = (
        orders.select({"shop": "key", "at": "intended_at", "amount": "value * 7919 % 97"})
        .key_by("shop")
        .window("seconds", Tumbling(timedelta(seconds=1)), event_time="at")
        .aggregate(orders=count(), revenue=sum_("amount"))
    )
    seconds.sink("seconds-out", JsonlSink(f"{output}/seconds"))
    seconds.key_by("shop").process("records", Record).sink("records-out", JsonlSink(f"{output}/records"))
    return flow
