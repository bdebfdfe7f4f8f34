"""Due times of the rows of a paced split.

The position contains the start, so a recovery does not move the schedule. If the wall clock was set back between two
runs, rows are emitted earlier by that difference.
"""


class Schedule:
    def __init__(self, rows_per_second: float) -> None:
        self.start_ns: int | None = None
        self._began = False
        self._ahead_ns = 0  # set-back of the clock before this run
        self._period_ns = 1e9 / rows_per_second

    def begin(self, now_ns: int, row: int) -> int:
        """Begins at the next row `row`; further calls change nothing. Returns the start."""
        if self.start_ns is None:
            self.start_ns = now_ns
        if not self._began:
            self._began = True
            self._ahead_ns = max(0, self.due_ns(max(0, row - 1)) - now_ns)
        return self.start_ns

    def next_due_ns(self, row: int) -> int | None:
        """Due time of `row`; None before `begin`: the row is due at once."""
        return self.due_ns(row) if self._began else None

    def due_ns(self, row: int) -> int:
        assert self.start_ns is not None
        return self.start_ns - self._ahead_ns + int(row * self._period_ns)

    def due_rows(self, row: int, now_ns: int) -> int:
        assert self.start_ns is not None
        since_ns, period_ns = now_ns - self.start_ns + self._ahead_ns, self._period_ns
        last = int(since_ns / period_ns) + 1  # rounding errs by at most one row
        while last > row and int(last * period_ns) > since_ns:  # `due_ns`, inlined
            last -= 1
        while int((last + 1) * period_ns) <= since_ns:
            last += 1
        return max(0, last - row + 1) if int(row * period_ns) <= since_ns else 0
