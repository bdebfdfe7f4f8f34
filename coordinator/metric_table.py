"""THE table of metrics that operators and slots send.

A new metric is a new row and the line that counts, then `make tables`. Names never change: people's alarms use them.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Metric:
    """`of`: an operator in a slot, or a slot. `over_slots`: merge rule for several slots."""

    name: str
    unit: str
    help: str  # a line, for docs/metrics.md
    of: Literal["operator", "slot"] = "operator"
    over_slots: Literal["sum", "min", "max"] = "sum"

    @property
    def kind(self) -> str:
        return type(self).__name__.lower()

    @property
    def labels(self) -> tuple[str, ...]:
        """A slot runs one subtask of every operator: subtask = slot."""
        return ("operator", "slot") if self.of == "operator" else ("slot",)

    def key(self, operator: str = "") -> str:
        """Key in heartbeats and in the status."""
        return f"{operator}.{self.name}" if self.of == "operator" else self.name


class Counter(Metric):
    """Only rises; restarts at 0 with the slot's process, or with each generation."""


class Gauge(Metric):
    """The present value."""


class Histogram(Metric):
    """The status has percentiles over all slots, so no slot label."""

    @property
    def labels(self) -> tuple[str, ...]:
        return ("operator",)

    def key(self, operator: str = "") -> str:
        return f"{operator}:{self.name}"


# fmt: off
LATE_ROWS = Counter("late_rows", "rows", "rows whose window was over: dropped")
LATE_LEFT_ROWS = Counter("late_left_rows", "rows", "joins: rows of the left stream behind the watermark: dropped")
LATE_RIGHT_ROWS = Counter("late_right_rows", "rows", "joins: rows of the right stream behind the watermark: dropped")
LOOKUPS = Counter("lookups", "rows", "`deduplicate`: ids that had to be looked up in the state")
LOOKUPS_SAVED = Counter("lookups_saved", "rows", "`deduplicate`: ids that the filters in memory told to be new")
DUPLICATES = Counter("duplicates", "rows", "`deduplicate`: rows dropped because their id was known")
FAR_EVENT_TIMES = Counter("far_event_times", "times", "a source read an event time far ahead of the clock; later rows "
                          "will be late")
BACKLOG_ROWS = Gauge("backlog_rows", "rows", "`read_kafka`: records (offsets, so markers of transactions too) that the "
                     "partitions have, as far as the brokers said, and the source has not read")
SPLITS_DISCOVERED = Counter("splits_discovered", "splits", "splits found while the job runs (files, partitions)")
DISCOVERY_FAILURES = Counter("discovery_failures", "times", "a source could not list its splits or open a new one; it "
                             "is tried again")
FILES_WITH_MORE_COLUMNS = Counter("files_with_more_columns", "files", "sources of files: files with columns or JSON "
                                  "fields that the first rows lacked (without `schema=`), or with keys of JSON objects "
                                  "that `schema=` lacks; they are not read")
FILES_PASSED_OVER = Gauge("files_passed_over", "files", "sources of files: names in the folders or patterns that are "
                          "not read, as listed at the start: other endings, links, hidden names that a wildcard would "
                          "match")
FILES_OUT_OF_ORDER = Counter("files_out_of_order", "files", "sources of files with `file_order=`: files that appeared "
                             "after a file of a later place had been read")
CLIENTS_REPLACED = Counter("clients_replaced", "clients", "`read_kafka`: clients that had gone silent and were "
                           "replaced")
NULL_VALUES = Counter("null_values", "records", "`read_kafka`: records without a value: rows of nulls, skipped, or bad "
                      "records, as `null_values=` says")
LOOKUP_REQUESTS = Counter("lookup_requests", "requests", "`lookup`: calls of its function, repetitions included")
LOOKUP_CACHE_HITS = Counter("lookup_cache_hits", "rows", "`lookup`: rows whose reply was in the cache")
LOOKUP_MISSES = Counter("lookup_misses", "rows", "`lookup`: rows of which the other system has nothing")
LOOKUP_TIMEOUTS = Counter("lookup_timeouts", "requests", "`lookup`: calls that took longer than `timeout`")
LOOKUP_RETRIES = Counter("lookup_retries", "requests", "`lookup`: repetitions of calls that had failed")
LOOKUP_LATE_REPLIES = Counter("lookup_late_replies", "replies", "`lookup`: replies that came after the time was over: "
                              "dropped")
LOOKUP_ROWS = Gauge("lookup_rows", "rows", "`lookup`: rows that wait for a reply, or for rows before them")
STABLE_ROWS = Gauge("stable_rows", "rows", "`stable`: rows that wait for the decision of a checkpoint, or for room")
SKIPPED_ROWS = Counter("skipped_rows", "rows", "rows (and timers) whose function raised: skipped "
                       '(`on_error="skip"`); of a source with `mode="at_most_once"`: passed over after failures')
ERROR_ROWS = Counter("error_rows", "rows", "rows (and timers) whose function raised: given to the stream of errors "
                     '(`on_error="side"`)')
UNREAD_SIDE_ROWS = Counter("unread_side_rows", "rows", "rows of side outputs that nothing reads: dropped")
EARLY_STAGING_FAILED = Counter("early_staging_failed", "times", "a sink could not stage rows before the checkpoint; "
                               "they are staged again with it")
TRANSACTIONS_UNDECIDED = Gauge("transactions_undecided", "transactions", "sinks: closed by a barrier whose "
                               "checkpoint is not decided yet (pre-committed)")
TRANSACTION_OPENED_MS = Gauge("transaction_opened_ms", "ms since 1970", "sinks: when the transaction that takes rows "
                              "began", over_slots="min")
TRANSACTION_OLDEST_MS = Gauge("transaction_oldest_ms", "ms since 1970", "sinks: when the oldest transaction that is "
                              "closed and not visible began; 0: there is none", over_slots="min")
TRANSACTION_TIMEOUT_MS = Gauge("transaction_timeout_ms", "ms", "sinks: how long the target remembers what is not "
                               "committed; 0: for ever", over_slots="min")
PROCESSED = Histogram("processed", "ms", "sinks: from the time a row was due at the source until the sink has taken it")
VISIBLE = Histogram("visible", "ms", "sinks: from the time a row was due at the source until readers can see it")

# Of a chain of operators, under the name of the first; restart with each generation.
ROWS_IN = Counter("rows_in", "rows", "rows that the chain took; of a source, that it read (again, after a failure)")
ROWS_OUT = Counter("rows_out", "rows", "rows that the chain sent to others, for each of them")
WORK_S = Counter("work_s", "s", "time in which the chain worked on rows")
BLOCKED_S = Counter("blocked_s", "s", "time in which the chain had to wait for its receivers")
HELD_S = Counter("held_s", "s", "time in which an operator of the chain had no room: it waits for a server")

# Of a slot. Those of a generation restart with it, and are absent between two.
RECORDS = Gauge("records", "rows", "rows that the sources have read, each counted once however often it was replayed",
                "slot")
WATERMARK_MS = Gauge("watermark_ms", "ms since 1970", "event time that has been reached", "slot", "min")
BUSY_S = Counter("busy_s", "s", "time in which the slot's loop worked on rows, of this generation", "slot")
BACKPRESSURED_S = Counter("backpressured_s", "s", "time in which a subtask had to wait for its receivers, of this "
                          "generation", "slot")
STARVED_S = Counter("starved_s", "s", "time in which the slot's loop was ready to run and got no processor", "slot")
WAITING_SPLITS = Gauge("waiting_splits", "splits", "splits that are not read because their event time is ahead of the "
                       "slowest one by `max_drift`", "slot")
LOOP_LAG_MS = Gauge("loop_lag_ms", "ms", "how late the last heartbeat was: what else kept the slot's loop", "slot",
                    "max")
STORE_WRITES = Counter("store_writes", "requests", "PUT, COPY and LIST requests of the slot's process to the job's "
                       "object store", "slot")
STORE_READS = Counter("store_reads", "requests", "GET and HEAD requests of it", "slot")
STORE_SENT_BYTES = Counter("store_sent_bytes", "bytes", "bytes sent with them", "slot")
STORE_RECEIVED_BYTES = Counter("store_received_bytes", "bytes", "bytes received with them", "slot")
RSS_BYTES = Gauge("rss_bytes", "bytes", "memory of the slot's process", "slot")
# fmt: on

METRICS = tuple(each for each in tuple(globals().values()) if isinstance(each, Metric))
