"""Sink that collects committed rows in this process's memory, for `run_local`.

Each subtask runs a copy; copies share a ledger. Decided rows that an earlier run did not show go to the new sink: this
process keeps the staged rows of the last 256 sinks.
"""

import importlib
import threading
import uuid
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, overload

import msgspec
import pyarrow as pa

from barrier_runtime.connectors.sink import SinkContext, TwoPhaseCommitSink, committable_format
from barrier_runtime.data.argument_types import kinds_checked
from barrier_runtime.data.elements import Batch
from barrier_runtime.data.row_class import row_class
from barrier_runtime.data.rows import Row, rows_of
from barrier_runtime.operators.functions.instances import Instances
from barrier_runtime.state.errors import InvalidJob, ProtocolViolation
from barrier_runtime.state.versioned import VersionedDecoder

if TYPE_CHECKING:
    from barrier_runtime.data.row_class import Instance

    Q = TypeVar("Q", bound=Instance)


class _Staged(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    number: int  # in the ledger
    ledger: str = ""  # "" in version 1, of another process


_STAGED_VERSION = 2
_STAGED = VersionedDecoder(committable_format(_STAGED_VERSION), msgspec.json.Decoder(_Staged))


class _Ledger:
    def __init__(self) -> None:
        self.id = uuid.uuid4().hex
        self._lock = threading.Lock()
        self._next = 0
        self._staged: dict[int, list[pa.RecordBatch]] = {}
        self._visible: dict[int, list[pa.RecordBatch]] = {}

    def stage(self, batches: list[pa.RecordBatch]) -> int:
        with self._lock:
            self._next += 1
            self._staged[self._next] = batches
            _keep(self.id, self._staged)
            return self._next

    def commit(self, number: int) -> None:
        with self._lock:
            if number in self._visible:
                return
            if number not in self._staged:
                raise ProtocolViolation(
                    f"CollectSink: transaction {number} is committed after it was aborted: report this with the log"
                )
            self._visible[number] = self._staged.pop(number)

    def adopt(self, earlier: str, number: int) -> None:
        with _recent_lock:
            staged = _recent.get(earlier, {}).pop(number, None)
        if staged is not None:
            self.commit(self.stage(staged))

    def batches(self) -> list[pa.RecordBatch]:
        with self._lock:
            return [batch for staged in self._visible.values() for batch in staged]


_KEPT = 256
_recent: OrderedDict[str, dict[int, list[pa.RecordBatch]]] = OrderedDict()  # staged rows, by ledger id
_recent_lock = threading.Lock()


def _keep(ledger: str, staged: dict[int, list[pa.RecordBatch]]) -> None:
    with _recent_lock:
        _recent[ledger] = staged
        _recent.move_to_end(ledger)
        while len(_recent) > _KEPT:
            _recent.popitem(last=False)


@kinds_checked
class CollectSink(TwoPhaseCommitSink):
    """Committed rows in memory, for `run_local`: `rows()`, `batches()`, `to_arrow()`, `to_pandas()`.

    >>> out = CollectSink()
    >>> orders.sink("out", out)
    >>> flow.run_local()
    >>> out.to_pandas()
    """

    _where = "CollectSink"  # until `open`

    def __init__(self) -> None:
        self._ledger = _Ledger()

    def __repr__(self) -> str:
        return "CollectSink()"

    def batches(self) -> list[pa.RecordBatch]:
        """Committed batches in the order of their commits."""
        return self._ledger.batches()

    @overload
    def rows(self) -> list[Row]: ...

    @overload
    def rows(self, kind: "type[Q]") -> "list[Q]": ...

    def rows(self, kind: Any = None) -> list[Any]:
        """Committed rows as dicts, or as instances of the dataclass or `msgspec.Struct` `kind`."""
        if kind is None:
            return [row for batch in self.batches() for row in rows_of(batch)]
        wanted = row_class(kind, where := f"rows({getattr(kind, '__name__', kind)})")
        if wanted is None:
            raise InvalidJob(f"{where}: pass a dataclass or a msgspec.Struct class, or nothing for dicts")
        made: list[Any] = []
        for batch in self.batches():
            wanted.check_columns(batch.schema, where)
            made += Instances(wanted).each(Batch(batch, 0))
        return made

    def to_arrow(self) -> pa.Table:
        """Committed rows as one table; without rows the table has no columns."""
        batches = self.batches()
        return pa.Table.from_batches(batches) if batches else pa.table({})

    def to_pandas(self) -> Any:
        """Committed rows as a `pandas.DataFrame`."""
        try:
            importlib.import_module("pandas")
        except ImportError:
            raise InvalidJob("to_pandas() needs pandas: pip install pandas, or use to_arrow() or rows()") from None
        return self.to_arrow().to_pandas()

    def __copy__(self) -> "CollectSink":
        twin = CollectSink()
        twin._ledger = self._ledger
        return twin

    def __deepcopy__(self, memo: dict[int, Any]) -> "CollectSink":
        return self.__copy__()

    def __reduce__(self) -> NoReturn:
        raise InvalidJob(
            "CollectSink keeps rows in the memory of one process, so it works only with run_local() and start_local() "
            "without processes=: run the job so, or write to ParquetSink, JsonlSink or CsvSink"
        )

    def open(self, context: SinkContext) -> None:
        self._where = context.where

    def begin_transaction(self) -> list[pa.RecordBatch]:
        return []

    def write(self, transaction: list[pa.RecordBatch], rows: pa.RecordBatch) -> None:
        transaction.append(rows)

    def pre_commit(self, transaction: list[pa.RecordBatch], checkpoint: int) -> bytes | None:
        if not transaction:
            return None
        return msgspec.json.encode(_Staged(_STAGED_VERSION, self._ledger.stage(transaction), self._ledger.id))

    def commit(self, committable: bytes) -> None:
        staged = _STAGED.decode(committable, self._where)
        if staged.ledger == self._ledger.id:
            self._ledger.commit(staged.number)
        else:
            self._ledger.adopt(staged.ledger, staged.number)

    def abort(self, committable: bytes) -> None:
        staged = _STAGED.decode(committable, self._where)
        with _recent_lock:
            _recent.get(staged.ledger, {}).pop(staged.number, None)
