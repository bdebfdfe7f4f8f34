"""When each row of a paced split is due. The start is part of the split's position: a recovery does not move the
schedule, so what was due meanwhile comes at once and its latency counts from when it should have come.

A wall clock that was set back between two runs would make the rest of the schedule lie in the future. Rows then come
earlier than that by what it was set back, at the right distance of each other; the start itself, which may be part of
rows, stays.
"""


class Schedule:
    """Row `k` is due at `start_ns + k / rows_per_second`. `start_ns` is set by the first poll, or by a seek."""

    def __init__(self, rows_per_second: float) -> None:
        self.start_ns: int | None = None
        self._began = False
        self._ahead_ns = 0  # of a clock that was set back before this began
        self._period_ns = 1e9 / rows_per_second

    def begin(self, now_ns: int, row: int) -> int:
        """`row` is the next one. Only the first call counts. Returns the start."""
        if self.start_ns is None:
            self.start_ns = now_ns
        if not self._began:
            self._began = True
            self._ahead_ns = max(0, self.due_ns(max(0, row - 1)) - now_ns)
        return self.start_ns

    def next_due_ns(self, row: int) -> int | None:
        """None before `begin`, which is to be asked for at once."""
        return self.due_ns(row) if self._began else None

    def due_ns(self, row: int) -> int:
        """Only after `begin`."""
        assert self.start_ns is not None
        return self.start_ns - self._ahead_ns + int(row * self._period_ns)

    def due_rows(self, row: int, now_ns: int) -> int:
        """How many rows from `row` on are due at `now_ns`."""
        assert self.start_ns is not None
        since_ns, period_ns = now_ns - self.start_ns + self._ahead_ns, self._period_ns
        last = int(since_ns / period_ns) + 1  # at most one too many or too few by rounding
        while last > row and int(last * period_ns) > since_ns:  # `due_ns`, without a call
            last -= 1
        while int((last + 1) * period_ns) <= since_ns:
            last += 1
        return max(0, last - row + 1) if int(row * period_ns) <= since_ns else 0
