"""Rows on their way to the brokers, by flight: the rows of one write.

| flight | event                          | next    |
|--------|--------------------------------|---------|
| open   | a row is handed to the client  | open    |
| open   | the write ended, or raised     | closed  |
| any    | the brokers acknowledged a row | same    |
| closed | all its rows are acknowledged  | arrived |

A barrier waits for the flights that exist when its last row has been handed over, so later rows hold up no barrier. A
flight with a refused row never arrives; `KafkaDirect` raises the refusal instead.
"""

import threading
from collections import deque


class Flight:
    """`acknowledged` is written by the thread that serves the client; `sent` by the thread that writes, once."""

    __slots__ = ("acknowledged", "sent")

    def __init__(self) -> None:
        self.sent: int | None = None  # None: open
        self.acknowledged = 0

    @property
    def arrived(self) -> bool:
        return self.acknowledged == self.sent


class Flights:
    """Flights in the order of their rows. For several threads."""

    def __init__(self) -> None:
        self._flights: deque[Flight] = deque()
        self._lock = threading.Lock()

    def begin(self) -> Flight:
        flight = Flight()
        with self._lock:
            self._flights.append(flight)
        return flight

    def unacknowledged(self) -> tuple[Flight, ...]:
        """Forgets the arrived flights; returns the others, oldest first."""
        with self._lock:
            if any(flight.arrived for flight in self._flights):
                self._flights = deque(flight for flight in self._flights if not flight.arrived)
            return tuple(self._flights)
