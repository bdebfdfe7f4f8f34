"""Numbers of slots in a job, by the numbers under which the driver started their processes. Pure."""


class Seats:
    """A permutation: a process has the first number until a spare takes the place."""

    def __init__(self) -> None:
        self._index: dict[int, int] = {}
        self._started_as: dict[int, int] = {}

    def index(self, started_as: int) -> int:
        return self._index.get(started_as, started_as)

    def started_as(self, index: int) -> int:
        return self._started_as.get(index, index)

    def exchange(self, one: int, other: int) -> None:
        first, second = self.started_as(one), self.started_as(other)
        self._index[first], self._index[second] = other, one
        self._started_as[other], self._started_as[one] = first, second

    @property
    def exchanged(self) -> int | None:
        """A number whose process was started under another number; None: no such number."""
        return next((index for index, started in self._started_as.items() if index != started), None)
