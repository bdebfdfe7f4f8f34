"""For which rows the value of a part of an expression is needed.

Arrow computes all branches of a `CASE` for all rows. So that `CASE WHEN b <> 0 THEN a / b END` does not fail where b is
0, what may fail gets nulls in place of the rows that do not need it. In a long chain of conditions that may fail
themselves only the first ones count, because each holds all those before it.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.compute as pc

from barrier_runtime.data.sql.arguments import Argument, Made

_MOST_IN_CONDITIONS = 64  # calls of `only`


class Needed:
    def __init__(self) -> None:
        self._rows: Made | None = None  # of all rows
        self._inside = 0  # calls of `only` in `_rows`
        self.made = 0  # calls of `only` so far, and those in their conditions

    def only(self, argument: Argument) -> Argument:
        """Null where it is not needed. A constant stays one."""
        if self._rows is None or argument.is_constant:
            return argument
        self.made += 1 + self._inside
        nulls = pc.scalar(pa.scalar(None, argument.type))
        return Argument(pc.if_else(self._rows, argument.made, nulls), argument.type, False, None)

    @contextmanager
    def scope(self) -> Iterator[None]:
        """`narrow` holds until its end."""
        before = self._rows, self._inside
        yield
        self._rows, self._inside = before

    def narrow(self, condition: Made, inside: int) -> None:
        """Needed only where `condition` holds, too. `inside`: calls of `only` in it."""
        if inside and self._inside + inside > _MOST_IN_CONDITIONS:
            return
        self._rows = condition if self._rows is None else pc.and_kleene(self._rows, condition)
        self._inside += inside
