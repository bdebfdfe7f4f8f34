"""Rules for the rows that readers of a target may see. Pure.

A transaction must be visible after the commit has returned, may be visible after the decision, and otherwise must not
be visible.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Rule = Literal[
    "lost",  # a decided row is not visible, or the commit keeps raising
    "doubled",  # a row is visible more than once
    "altered",  # a number or text of a row is another than was written
    "undecided visible",  # a row of no decided transaction
    "torn",  # only a part of a transaction or decision
    "out of order",
    "abort ignored",  # an aborted transaction can be committed
    "left over",
    "raises",  # a call that must succeed raises
]


class Broken(BaseException):
    """Not an `Exception`: retries of the runtime must not swallow a broken rule."""

    def __init__(self, rule: Rule, what: str, seen: Sequence[Any] = (), expected: Sequence[Any] = ()) -> None:
        super().__init__(rule, what)
        self.rule: Rule = rule
        self.what = what
        self.seen = seen
        self.expected = expected


@dataclass(eq=False)
class Written:
    token: int
    subtask: int
    parallelism: int
    ids: list[int] = field(default_factory=list)
    checkpoint: int = 0  # checkpoint that closed it; 0: open
    committable: bytes | None = None
    decision: int | None = None
    must_be_seen: bool = False

    def __str__(self) -> str:
        return f"generation {self.token}, subtask {self.subtask}, checkpoint {self.checkpoint}"


@dataclass(frozen=True)
class Promise:
    exactly_once: bool
    global_committer: bool
    ordered: bool  # readers get a subtask's rows of a key in the order of writing
    shows_early: bool  # upserts with a deterministic replay: undecided rows may be visible
    id_column: str
    key_column: str
    after_decision: bool = False  # rows become visible after their decision, one by one


class Judge:
    """Judge of a scenario, whose rows have ids from `first_id` to below `end_id`."""

    def __init__(self, promise: Promise, first_id: int) -> None:
        self._promise = promise
        self._first_id = first_id
        self.end_id = first_id
        self.transactions: list[Written] = []
        self._versions: dict[int, list[Mapping[str, Any]]] = {}  # each generation may write an id

    def wrote(self, number: int, row: Mapping[str, Any]) -> None:
        self.end_id = max(self.end_id, number + 1)
        versions = self._versions.setdefault(number, [])
        if row not in versions:
            versions.append(row)

    def observe(self, rows: Iterable[Mapping[str, Any]]) -> None:
        promise = self._promise
        mine = [row for row in rows if self._first_id <= row[promise.id_column] < self.end_id]
        seen = [int(row[promise.id_column]) for row in mine]
        counts = Counter(seen)
        closed = [each for each in self.transactions if each.decision is not None]
        must = {number for each in closed if each.must_be_seen for number in each.ids}
        may = {number for each in closed for number in each.ids}
        lost = sorted(must - counts.keys())
        if lost:
            raise Broken("lost", f"committed, but not seen: {self._named(lost)}", sorted(seen), sorted(must))
        for number, row in zip(seen, mine, strict=True):
            self._check_values(number, row)
        if not promise.exactly_once:
            return
        undecided = sorted(counts.keys() - may)
        if undecided and not promise.shows_early:
            raise Broken(
                "undecided visible", f"seen, but not decided: {self._named(undecided)}", sorted(seen), sorted(may)
            )
        doubled = sorted(number for number, count in counts.items() if count > 1)
        if doubled:
            raise Broken("doubled", f"seen more than once: {self._named(doubled)}", sorted(seen), sorted(may))
        if not (promise.shows_early or promise.after_decision):
            self._check_whole(closed, counts.keys())
        if promise.ordered:
            self._check_order(mine, closed)

    def _check_values(self, number: int, row: Mapping[str, Any]) -> None:
        """Raises `Broken` for another number or text. Readers may lack columns, or return numbers as text."""
        versions = self._versions.get(number, [])
        for written in versions:
            changed = [name for name, value in written.items() if name in row and _is_altered(value, row[name])]
            if not changed:
                return
        if versions:
            name = changed[0]
            what = f"{name} of {self._named([number])} is {row[name]!r}; written was {written[name]!r}"
            raise Broken("altered", what, [dict(row)], versions)

    def _check_whole(self, closed: list[Written], seen: Iterable[int]) -> None:
        """Raises `Broken` if a transaction (with a global committer: a decision) is partly visible."""
        wholes: dict[object, set[int]] = {}
        for each in closed:
            wholes.setdefault(each.decision if self._promise.global_committer else each, set()).update(each.ids)
        visible = set(seen)
        for whole in wholes.values():
            part = whole & visible
            if part and part != whole:
                raise Broken(
                    "torn",
                    f"seen: {self._named(sorted(part))}; not seen: {self._named(sorted(whole - part))}",
                    sorted(part),
                    sorted(whole),
                )

    def _check_order(self, rows: list[Mapping[str, Any]], closed: list[Written]) -> None:
        writer = {number: (each.parallelism, each.subtask) for each in closed for number in each.ids}
        last: dict[object, int] = {}
        for row in rows:
            number = int(row[self._promise.id_column])
            line = (*writer[number], row.get(self._promise.key_column)) if number in writer else None
            if line is not None and last.get(line, -1) > number:
                raise Broken(
                    "out of order",
                    f"of key {line[2]!r}, {number} is read after {last[line]}",
                    [int(each[self._promise.id_column]) for each in rows],
                )
            if line is not None:
                last[line] = number

    def _named(self, ids: Sequence[int]) -> str:
        told = []
        for number in ids[:4]:
            holders = "; ".join(str(each) for each in self.transactions if number in each.ids) or "never written"
            told.append(f"row {number} ({holders})")
        return ", ".join(told) + (f" and {len(ids) - 4} more" if len(ids) > 4 else "")


def _is_altered(written: Any, seen: Any) -> bool:
    """Of other types than integers and text, a reader's form may differ."""
    return type(written) in (int, str) and seen != written and str(seen) != str(written)
