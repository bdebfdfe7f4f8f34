"""Checker of coordinators that have learned that they no longer lead."""

from collections import Counter, defaultdict

from checkers import Checker, Report
from facts import Facts
from workload import Workload

from barrier_runtime.coordinator.log.records import Fence, Lead, Record


class ZombiesDeleteNothing(Checker):
    """I7: a coordinator that has read another leader's record starts no more deletes, not even of unused files.

    A check of the log that started before and finds no record may still finish with its delete."""

    def __init__(self, facts: Facts, workload: Workload, report: Report) -> None:
        super().__init__(facts, workload, report)
        self._leader = ""  # name of the process, with the runner's suffix
        self._knows: dict[str, str] = {}  # coordinator -> the other leader whose record it has read
        self._looks: dict[str, Counter[int]] = defaultdict(Counter)  # unanswered reads, by log position
        self._looked_before: dict[str, Counter[int]] = {}  # those started before the coordinator knew
        self._may_end: set[str] = set()  # coordinators that may still send the delete after such a read

    def on_record(self, position: int, record: Record) -> None:
        if isinstance(record, Fence | Lead):
            self._leader = record.put_id.rpartition("-")[0]

    def on_request(self, actor: str, operation: str, key: str) -> None:
        position = self.facts.position_of(key)
        if operation == "get" and position is not None:
            self._looks[actor][position] += 1
        if operation != "delete":
            self._may_end.discard(actor)
            return
        if not actor.startswith("coordinator") or self._is_leader(actor) or actor in self._may_end:
            return
        ours = key.startswith((self.facts.paths.data_prefix, self.facts.paths.checkpoints_prefix))
        if ours and self._knows.get(actor) == self._leader:
            self.wrong(f"{actor} deletes {key} after it was told that {self._leader} leads")

    def on_log_get_answered(self, actor: str, position: int, there: bool | None) -> None:
        self._looks[actor][position] -= 1
        before = self._looked_before.get(actor, Counter())
        if before[position] > 0:
            before[position] -= 1
            if there is False:
                self._may_end.add(actor)
        if there:
            record = self.facts.records[position - 1]
            writer = record.put_id.rpartition("-")[0]
            if isinstance(record, Fence | Lead) and writer == self._leader and not self._is_leader(actor):
                if self._knows.get(actor) != writer:
                    self._looked_before[actor] = Counter(self._looks[actor])
                self._knows[actor] = writer

    def _is_leader(self, actor: str) -> bool:
        return f"{self._leader}-".startswith(f"{actor}-")


ZOMBIE_CHECKERS: tuple[type[Checker], ...] = (ZombiesDeleteNothing,)  # for every kind of job
