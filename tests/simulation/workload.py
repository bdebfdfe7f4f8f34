"""The simulated job: numbered bank transfers between accounts.

A source emits numbered transfers per split. Each transfer becomes two legs, a debit and a credit. Legs pass keyed state
per account (number of legs, balance), and in some graphs a second keyed state per split. Every row names its record and
the state after it, so rows alone prove loss, duplicates, reordering and torn state; all deltas sum to 0.

Every value is a function of the record's number: a replay gives the same rows.
"""

import operator
import warnings
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
import pyarrow as pa

from barrier_runtime import (
    AggregatingState,
    BroadcastState,
    Dataflow,
    ListState,
    MapState,
    ReducingState,
    ValueState,
    arg_max,
    connect,
    count,
    first,
    sum_,
)
from barrier_runtime.connectors.sink import TwoPhaseCommitSink
from barrier_runtime.connectors.source import Polled, Split, SplitReader

ACCOUNTS = 7
TRANSFERS = pa.schema([("source", pa.string()), ("split", pa.int32()), ("seq", pa.int64())])
LEGS = pa.schema(
    [
        ("source", pa.string()),
        ("split", pa.int32()),
        ("seq", pa.int64()),
        ("leg", pa.int32()),
        ("account", pa.int32()),
        ("delta", pa.int64()),
    ]
)
COUNTED = pa.schema([*LEGS, *[(name, pa.int64()) for name in ("n", "balance", "opened", "peak")]])
AFTER_ALL_MS = 4_102_444_800_000  # 2100-01-01: a timer that fires at the end of input alone
NOT_KNOWN = -1  # value of `opened` and `peak` without aggregates
AUDITED = pa.schema([*COUNTED, ("m", pa.int64())])
RULED_LEGS = pa.schema([*COUNTED, ("rules", pa.int64()), ("digest", pa.int64())])


def transfer(source: str, split: int, seq: int) -> tuple[int, int, int]:
    """Returns (paying account, receiving account, amount) of one record."""
    h = zlib.crc32(f"{source}-{split}-{seq}".encode())
    payer = h % ACCOUNTS
    return payer, (payer + 1 + (h >> 8) % (ACCOUNTS - 1)) % ACCOUNTS, 1 + (h >> 16) % 100


@dataclass(frozen=True)
class SimSource:
    """Source of `splits_total` splits of `count` transfers, one every `period_ns` from `start_ns` on (wall clock)."""

    name: str
    splits_total: int
    count: int
    start_ns: int
    period_ns: int
    bounded: bool
    burst_ns: int = 1  # records arrive in bursts, at multiples of burst_ns
    batch_rows: int = 8
    world_ns: Callable[[], int] | None = field(
        default=None, repr=False
    )  # the world's time; None: the slot's clock is right
    opening: Callable[[str], None] = field(default=lambda name: None, repr=False)  # called in `splits`

    schema = TRANSFERS
    exactly_once = True

    def splits(self, parallelism: int) -> Sequence[Split]:
        self.opening(self.name)
        return [Split(f"{self.name}-{index}", str(index).encode()) for index in range(self.splits_total)]

    def reader(self, split: Split) -> SplitReader:
        return _Reader(self, int(split.payload))


class _Reader:
    def __init__(self, source: SimSource, split: int) -> None:
        self._source = source
        self._split = split
        self._next = 0
        self._skew_ns: int | None = None if source.world_ns is not None else 0

    @property
    def finished(self) -> bool:
        return self._source.bounded and self._next >= self._source.count

    def poll(self, max_rows: int, now_ns: int) -> Polled | None:
        source = self._source
        if source.world_ns is not None:
            self._skew_ns = now_ns - source.world_ns()
            now_ns -= self._skew_ns
        since_ns = (now_ns - source.start_ns) // source.burst_ns * source.burst_ns
        due = min(source.count, since_ns // source.period_ns + 1) - self._next
        if due <= 0:
            return None
        rows = min(due, max_rows, source.batch_rows)
        batch = pa.RecordBatch.from_arrays(
            [
                pa.array([source.name] * rows, pa.string()),
                pa.array([self._split] * rows, pa.int32()),
                pa.array(range(self._next, self._next + rows), pa.int64()),
            ],
            schema=TRANSFERS,
        )
        self._next += rows
        return Polled(batch, 0)

    def next_due_ns(self) -> int | None:
        source = self._source
        if self._skew_ns is None:
            return None
        if self._next >= source.count:
            return source.start_ns + 3_600_000_000_000 + self._skew_ns if not source.bounded else 0
        paced_ns = -(-self._next * source.period_ns // source.burst_ns) * source.burst_ns
        return source.start_ns + paced_ns + self._skew_ns

    def position(self) -> bytes:
        return b"%d" % self._next

    def seek(self, position: bytes) -> None:
        self._next = int(position)

    def close(self) -> None:
        """Does nothing: the reader holds nothing open."""


def legs(batch: pa.RecordBatch) -> pa.RecordBatch:
    rows: list[tuple[str, int, int, int, int, int]] = []
    for source, split, seq in zip(*(column.to_pylist() for column in batch.columns), strict=True):
        payer, payee, amount = transfer(source, split, seq)
        rows.append((source, split, seq, 0, payer, -amount))
        rows.append((source, split, seq, 1, payee, amount))
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), LEGS, strict=True)], schema=LEGS
    )


def nothing_known(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Adds `opened` and `peak` as NOT_KNOWN."""
    unknown = pa.array([NOT_KNOWN] * rows.num_rows, pa.int64())
    return pa.RecordBatch.from_arrays([*rows.columns, unknown, unknown], schema=COUNTED)


class Total:
    """Aggregate that sums integers."""

    def zero(self) -> int:
        return 0

    def add(self, total: int, value: int) -> int:
        return total + value

    def result(self, total: int) -> int:
        return total


class Balance:
    """Emits per account the leg's number and the balance after the leg.

    Aggregates also emit the account's first transfer (`opened`) and the transfer with the greatest delta (`peak`)."""

    n = ValueState(int, default=0)
    balance = ValueState(int, default=0)

    def process(self, key: Any, row: dict[str, Any], ctx: Any) -> Any:
        n = self.n.value + 1
        balance = self.balance.value + row["delta"]
        self.n.value = n
        self.balance.value = balance
        yield {**row, "n": n, "balance": balance, "opened": NOT_KNOWN, "peak": NOT_KNOWN}


class Journal:
    """Emits the rows of `Balance` from lists and maps.

    The latest legs are in a map by number, older legs in a list of pairs, the oldest in sums. A leg that is lost,
    duplicated or restored after its deletion changes the number and balance of all later legs."""

    latest = MapState(int, int)
    pairs = ListState(int)
    legs = ReducingState(int, operator.add)
    total = AggregatingState(Total(), int)

    def process(self, key: Any, row: dict[str, Any], ctx: Any) -> Any:
        latest = list(self.latest.items())
        n = 1 + len(latest) + 2 * sum(1 for _ in self.pairs) + (self.legs.value or 0)
        balance = row["delta"] + sum(delta for _, delta in latest) + sum(self.pairs) + (self.total.value or 0)
        if len(self.latest) != len(latest) or [number for number, _ in latest] != list(range(n - len(latest), n)):
            n += 1_000_000  # a number that checkers report as wrong
        self.latest[n] = row["delta"]
        if len(self.latest) == 4:
            self.pairs.append(sum(self.latest.pop(number, 0) for number in (n - 3, n - 2)))
        if len(self.pairs) == 5:
            self.legs.add(10)
            self.total.add(sum(self.pairs))
            self.pairs.clear()
        yield {**row, "n": n, "balance": balance, "opened": NOT_KNOWN, "peak": NOT_KNOWN}


class Ruled(Balance):
    """`Balance` with broadcast rules.

    Each leg carries the number of rules and a digest of the rules in order, or NOT_KNOWN as the digest if a rule of a
    split was lost or arrived twice."""

    rules = BroadcastState(int, int)
    following = BroadcastState(int, int)  # split -> its next rule; the key -1 exists after a wrong rule
    last = ValueState(dict)

    def __init__(self, all_rules: int) -> None:
        self._all_rules = all_rules  # number before the end of input; -1: unbounded

    def on_legs(self, key: Any, row: dict[str, Any], ctx: Any) -> Any:
        ctx.timers.register(AFTER_ALL_MS)
        for counted in self.process(key, row, ctx):
            self.last.value = {**counted, "rules": len(self.rules), "digest": self._digest()}
            yield self.last.value

    def on_timer(self, key: Any, timestamp_ms: int, ctx: Any) -> Any:
        """Emits the last leg again if not all rules are valid at the end of input: checkers report that."""
        if self._all_rules not in (-1, len(self.rules)):
            yield {**self.last.value, "rules": len(self.rules), "digest": NOT_KNOWN}

    def on_rules(self, row: dict[str, Any], ctx: Any) -> None:
        number, before = len(self.rules) + 1, self.rules.get(len(self.rules), 0)
        self.rules[number] = zlib.crc32(f"{before} {row['split']} {row['seq']}".encode())
        if row["seq"] != self.following.get(row["split"], 0):
            self.following[-1] = row["seq"]
        self.following[row["split"]] = row["seq"] + 1

    def _digest(self) -> int:
        return NOT_KNOWN if -1 in self.following else self.rules.get(len(self.rules), 0)


class Audit:
    """Emits the leg's number per source split."""

    m = ValueState(int, default=0)

    def process(self, key: Any, row: dict[str, Any], ctx: Any) -> Any:
        m = self.m.value + 1
        self.m.value = m
        yield {**row, "m": m}


class EmittingAudit(Audit):
    """`Audit` that emits its rows to a side output, too."""

    def process(self, key: Any, row: dict[str, Any], ctx: Any) -> Any:
        for audited in super().process(key, row, ctx):
            ctx.emit("audited", audited)
            yield audited


class FailingAudit(EmittingAudit):
    """Counts, emits and yields all legs, then fails at the legs of account 0. The counts stay."""

    def process(self, key: Any, row: dict[str, Any], ctx: Any) -> Any:
        for audited in super().process(key, row, ctx):
            yield audited
            if audited["account"] == 0:
                raise ValueError(str(audited["m"]))


def audited_after_all(error: dict[str, Any]) -> dict[str, Any]:
    """Returns the row of a leg at which `FailingAudit` failed."""
    return {**msgspec.json.decode(error["row"]), "m": int(error["message"])}


GRAPHS = ("one-shuffle", "two-shuffles", "union", "two-inputs", "two-sinks")
RULED = "ruled"  # with rules that change while legs come
RULES = "rules"  # the source of rules; no sink receives its rows
SIDE_GRAPHS = ("emitted", "failing", "emitted-by-key")  # two sinks; "side" receives a side output


@dataclass(frozen=True)
class Workload:
    """Settings of the simulated job. `graph` is one of GRAPHS or SIDE_GRAPHS, or RULED."""

    graph: str
    splits: int
    count: int  # records per split
    start_ns: int
    period_ns: int
    bounded: bool
    out: Callable[[], TwoPhaseCommitSink] = field(repr=False)  # makes sink "out"
    side: Callable[[], TwoPhaseCommitSink] = field(repr=False)  # makes sink "side" of graphs with two sinks
    aggregated: bool = False  # keeps the state as aggregates, so in columns
    burst_ns: int = 1
    batch_rows: int = 8
    world_ns: Callable[[], int] | None = field(default=None, repr=False)
    whole: bool = True  # readers of "out" see complete checkpoints
    legs_from: Callable[[Dataflow], Any] | None = field(default=None, repr=False)  # replaces the sources
    opening: Callable[[str], None] = field(default=lambda name: None, repr=False)  # called when a source opens
    collected: bool = False  # keeps the state in lists and maps
    completed: Callable[[Any], Any] | None = field(default=None, repr=False)  # adds a lookup before the accounts
    rolled: bool = False  # files of "out" grow over checkpoints
    switch: Literal["row", "barrier"] = "row"  # when broadcast rules take effect
    stable: bool = False  # stores the rows of "out" before the sink
    latest: bool = False  # only the last row of each account goes out

    @property
    def sources(self) -> tuple[str, ...]:
        return ("a", "b") if self.graph in ("union", "two-inputs") else ("a",)

    @property
    def sinks(self) -> tuple[str, ...]:
        return ("out", "side") if self.graph in ("two-sinks", *SIDE_GRAPHS) else ("out",)

    @property
    def audited(self) -> bool:
        return self.graph in ("two-shuffles", "two-inputs", "two-sinks", *SIDE_GRAPHS)

    @property
    def transfers(self) -> int:
        return len(self.sources) * self.splits * self.count

    @staticmethod
    def rows_in(data: bytes) -> list["Row"]:
        return rows_in(data)

    @staticmethod
    def row_of(row: dict[str, Any]) -> "Row":
        return Row(**row)

    def source(self, name: str) -> SimSource:
        return SimSource(
            name,
            self.splits,
            self.count,
            self.start_ns,
            self.period_ns,
            self.bounded,
            self.burst_ns,
            self.batch_rows,
            self.world_ns,
            self.opening,
        )

    def flow(self, job: str) -> Dataflow:
        flow = Dataflow(job)
        if self.legs_from is not None:
            streams = [self.legs_from(flow)]
        else:
            event_time = "seq" if self.graph == RULED else None
            transfers = [flow.source(name, self.source(name), event_time=event_time) for name in self.sources]
            streams = [each.map_batches(legs, schema=LEGS) for each in transfers]
        if self.completed is not None:
            streams[0] = self.completed(streams[0])
        if self.graph == "two-inputs":  # one input passes a shuffle more than the other
            spread = streams[0].key_by("split", "source").process("relay", relay, schema=LEGS)
            stream = spread.union(streams[1])
        elif self.graph == "union":
            stream = streams[0].union(streams[1])
        else:
            stream = streams[0]
        accounts = stream.key_by("account")
        if self.graph == RULED:
            rules = flow.source(RULES, self.source(RULES), event_time="seq")
            counted = connect(legs=accounts, rules=rules.broadcast(self.switch)).process(
                "balance", Ruled(self.splits * self.count if self.bounded else -1), schema=RULED_LEGS
            )
        elif self.latest:
            counted = accounts.aggregate("balance", emit="latest", n=count(), balance=sum_("delta"))
        elif self.aggregated:
            sums = {"n": count(), "balance": sum_("delta")}
            if self.collected:  # no other aggregates are computed from lists
                counted = accounts.aggregate("balance", **sums).map_batches(nothing_known, schema=COUNTED)
            else:
                picks = {"opened": first("seq"), "peak": arg_max("seq", by="delta")}
                counted = accounts.aggregate("balance", **sums, **picks)
        else:
            counted = accounts.process("balance", Journal if self.collected else Balance, schema=COUNTED)
        if self.graph in SIDE_GRAPHS:
            splits = counted.key_by("source", "split")
            side = {"audited": AUDITED}
            if self.graph == "failing":
                good, emitted, errors = splits.process(
                    "audit", FailingAudit, schema=AUDITED, side=side, on_error="side"
                )
                told = errors.map(audited_after_all, schema=AUDITED)
                counted, emitted = good.union(told), emitted.union(told)
            else:
                counted, emitted = splits.process("audit", EmittingAudit, schema=AUDITED, side=side)
            if self.graph == "emitted-by-key":
                emitted = emitted.key_by("account").process("pass", relay, schema=AUDITED)
            emitted.sink("side", self.side())
        elif self.audited:
            splits = counted.key_by("source", "split")
            with warnings.catch_warnings():  # an audit counts every update
                warnings.filterwarnings("ignore", ".*counts every update")
                counted = (
                    splits.aggregate("audit", m=count())
                    if self.aggregated
                    else splits.process("audit", Audit, schema=AUDITED)
                )
        if self.stable:
            counted = counted.stable()
        counted.sink("out", self.out())
        if self.graph == "two-sinks":
            counted.sink("side", self.side())
        return flow


def relay(key: Any, row: dict[str, Any], ctx: Any) -> dict[str, Any]:
    return row


class Row(msgspec.Struct, frozen=True):
    source: str
    split: int
    seq: int
    leg: int
    account: int
    delta: int
    n: int
    balance: int
    opened: int = NOT_KNOWN
    peak: int = NOT_KNOWN
    m: int = 0
    rules: int = 0
    digest: int = 0


ROW = msgspec.json.Decoder(Row)


def rows_in(data: bytes) -> list[Row]:
    return [ROW.decode(line) for line in data.splitlines()]
