"""Checker of idempotent upserts: the target may be ahead of the decided checkpoints, but never behind."""

from collections import Counter
from collections.abc import Sequence

from checkers import PROTOCOL_CHECKERS, Checker, Report
from facts import Decision, Facts
from workload import Row, Workload, transfer

from barrier_runtime.coordinator.log.records import Fence

_END = "the job has ended"


class LastValues(Checker):
    """I5: each account has the row of its last decided leg, or of a later leg.

    No generation overwrites a newer generation's row. The workload has one split, so an account's rows are a function
    of their number."""

    def __init__(self, facts: Facts, workload: Workload, report: Report) -> None:
        super().__init__(facts, workload, report)
        self._values: dict[int, Row] = {}
        self._tokens: dict[int, int] = {}
        self._decided: Counter[int] = Counter()  # account -> number of decided legs
        self._legs: dict[int, list[tuple[int, int, int]]] = {}  # account -> (seq, leg, balance) of each
        for seq in range(workload.count):
            payer, payee, amount = transfer("a", 0, seq)
            for leg, (account, delta) in enumerate(((payer, -amount), (payee, amount))):
                legs = self._legs.setdefault(account, [])
                legs.append((seq, leg, (legs[-1][2] if legs else 0) + delta))

    def on_upserts(self, token: int, rows: Sequence[Row]) -> None:
        """Judges rows that generation `token` writes atomically, in order."""
        for row in rows:
            newest = self._tokens.get(row.account, 0)
            if token < newest:
                self.wrong(f"generation {token} writes {row} over a value of generation {newest}")
            self._tokens[row.account] = max(token, newest)
            legs = self._legs.get(row.account, [])
            if not 1 <= row.n <= len(legs) or legs[row.n - 1] != (row.seq, row.leg, row.balance):
                self.wrong(f"{row} is written, which is not leg {row.n} of account {row.account}")
            self._values[row.account] = row
        for account in sorted({row.account for row in rows}):
            self._judge(account, f"generation {token} writes")

    def on_decision(self, decision: Decision) -> None:
        in_flight = Counter(self._account_of(seq, leg) for _, _, seq, leg in decision.in_flight)
        position = decision.positions.get(("a", 0), 0)
        for account, legs in sorted(self._legs.items()):
            read = sum(1 for seq, _, _ in legs if seq < position)
            self._decided[account] = read - in_flight[account]
            self._judge(account, f"checkpoint {decision.record.checkpoint} is decided")

    def at_end(self, expected_all: bool) -> None:
        for account, legs in sorted(self._legs.items()):
            if expected_all:
                self._decided[account] = len(legs)
            self._judge(account, _END)

    def _judge(self, account: int, when: str) -> None:
        value = self._values.get(account)
        if (value.n if value is not None else 0) < self._decided[account]:
            self.wrong(f"{when}, account {account} has {value}, {self._decided[account]} of its legs are decided")

    @staticmethod
    def _account_of(seq: int, leg: int) -> int:
        return transfer("a", 0, seq)[leg]


class StableRows(LastValues):
    """I4: `stable` releases rows after their decision, in order, once per generation and without gaps.

    A generation begins with the rows between its restored checkpoint and the decided checkpoint before that: these rows
    cannot have been released before the barrier. Released rows that the target never got come again, so a generation
    begins at the latest with the row behind the target's row. Decided rows may be on their way until the job ends."""

    def __init__(self, facts: Facts, workload: Workload, report: Report) -> None:
        super().__init__(facts, workload, report)
        self._last: dict[tuple[int, int], int] = {}  # generation, account -> last leg
        self._highest: Counter[int] = Counter()  # account -> last leg of all generations
        self._counts: dict[int, tuple[Counter[int], Counter[int]]] = {}  # log position -> decided before, and with it

    def on_decision(self, decision: Decision) -> None:
        before = self._decided.copy()
        super().on_decision(decision)
        self._counts[decision.position] = before, self._decided.copy()

    def on_released(self, token: int, rows: Sequence[Row]) -> None:
        """Judges rows that a subtask of generation `token` releases, in order."""
        for row in rows:
            if row.n > self._decided[row.account]:
                self.wrong(f"generation {token} releases {row} before the decision")
            last = self._last.get((token, row.account))
            if last is not None and row.n != last + 1:
                self.wrong(f"generation {token} releases {row} after leg {last}")
            elif last is None and row.n > self._latest_first(token, row.account):
                self.wrong(f"generation {token} begins with {row}: earlier rows are missing")
            elif last is None and row.n > self._written(row.account) + 1:
                self.wrong(f"generation {token} begins with {row}: earlier rows never reached the target")
            self._last[token, row.account] = row.n
            self._highest[row.account] = max(self._highest[row.account], row.n)

    def _written(self, account: int) -> int:
        value = self._values.get(account)
        return 0 if value is None else value.n

    def _latest_first(self, token: int, account: int) -> int:
        """Returns the latest leg with which `stable` may begin in this generation."""
        fence = next(each for each in self.facts.records if isinstance(each, Fence) and each.token == token)
        before, decided = self._counts.get(fence.restored_position, (self._highest, self._highest))
        known = before if decided[account] > before[account] else self._highest
        return 1 + min(known[account], self._highest[account])

    def _judge(self, account: int, when: str) -> None:
        if when == _END:
            super()._judge(account, when)

    def at_end(self, expected_all: bool) -> None:
        finish = self.facts.finish
        if expected_all or (finish is not None and finish.outcome == "finished"):
            super().at_end(expected_all)


STABLE_CHECKERS: tuple[type[Checker], ...] = (*PROTOCOL_CHECKERS, StableRows)
UPSERT_CHECKERS: tuple[type[Checker], ...] = (*PROTOCOL_CHECKERS, LastValues)
