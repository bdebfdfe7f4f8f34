"""A sink that cannot keep up. A module, so that Spark's workers can import it."""

import time

from harness import is_enough

from barrier_runtime.connectors.files.sink.sink import JsonlSink


class SlowSink(JsonlSink):
    """The real sink, which blocks for `per_row_s` seconds for every row until `enough` of its output."""

    def __init__(self, url: str, per_row_s: float) -> None:
        super().__init__(url)
        self.per_row_s = per_row_s

    def write(self, transaction, rows):
        if not is_enough(self.url):
            time.sleep(rows.num_rows * self.per_row_s)
        super().write(transaction, rows)


class PatientSink(JsonlSink):
    """The production sink, slow at the work that every checkpoint waits for."""

    def pre_commit(self, transaction, checkpoint):
        time.sleep(0.3)
        return super().pre_commit(transaction, checkpoint)
