"""The short chaos on real processes, and tests of the parts: each verdict can fail.

The long version is `make chaos MINUTES=n [SEED=s]`. CHAOS_SEED adds a seed to the short version.
"""

import hashlib
import http.client
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from barrier_runtime.connectors.files.sink.commit_log import CommitLog, CommittedFile
from barrier_runtime.state.store.open import open_store
from tests.integration.chaos import workload
from tests.integration.chaos.nemesis import Strike
from tests.integration.chaos.plan import KILLS, STORE, Action, plan
from tests.integration.chaos.processes import MARK, all_listeners, family, listeners_of, send
from tests.integration.chaos.reader import FolderView, SinkView, parsed
from tests.integration.chaos.report import recoveries
from tests.integration.chaos.run import Chosen, chaos
from tests.integration.chaos.store_proxy import Fault, store_proxy
from tests.integration.chaos.verdict import Rows, SinkAudit, Truth, told
from tests.waiting import until

TRUTH = Truth(splits=2, keys=4, groups=3)
SEEDS = [1235, *([int(os.environ["CHAOS_SEED"])] if "CHAOS_SEED" in os.environ else [])]


# ---------------------------------------------------------------- the verdict


class World:
    """Makes right rows, in order, so that a test can spoil them."""

    def __init__(self) -> None:
        self._groups: dict[int, tuple[int, int]] = {}

    def rows(self, *values: int) -> Rows:
        table = []
        for value in values:
            key = value % TRUTH.keys
            group = key % TRUTH.groups
            m, total = self._groups.get(group, (0, 0))
            self._groups[group] = (m + 1, total + value)
            table.append((value, key, value // TRUTH.keys + 1, 1_000 + value, group, m + 1, total + value))
        return Rows(*(np.array(column, dtype=np.int64) for column in zip(*table, strict=True)))


def without(rows: Rows, at: int) -> Rows:
    return Rows(*(np.delete(getattr(rows, name), at) for name in Rows.__dataclass_fields__))


def swapped(rows: Rows, order: list[int]) -> Rows:
    """State columns stay right: they follow the order of the group's rows."""
    return Rows(rows.value[order], rows.key[order], rows.n[order], rows.due_ns[order])


def spoiled(rows: Rows, column: str, at: int, by: int) -> Rows:
    getattr(rows, column)[at] += by
    return rows


def late_by_one_observation(world: World) -> list[Rows]:
    late, rest = world.rows(1), world.rows(0, 2, 3)
    return [rest, late]


FIVE = (0, 1, 2, 3, 4)
VERDICTS: dict[str, tuple[Callable[[World], list[Rows]], str]] = {  # histories of a sink, and their verdicts
    "right, whatever the order of splits": (lambda w: [w.rows(0, 2, 4, 1), w.rows(3, 5, 7, 6), w.rows(8)], ""),
    "a lost row": (lambda w: [w.rows(0, 1), without(w.rows(2, 3, 4, 5, 6, 7), 1)], "lost 1, state 1, wrong 1"),
    "rows that come one observation late": (late_by_one_observation, "wrong 1"),
    "seen again in another observation": (lambda w: [w.rows(0, 1, 2)] * 2, "twice 3, state 3, wrong 1"),
    "seen twice in one": (lambda w: [Rows.joined([World().rows(0, 1), World().rows(1)])], "twice 1, state 1, wrong 1"),
    "a late row of a key": (lambda w: [swapped(w.rows(0, 1, 2, 3, 4, 5), [4, 1, 2, 3, 0, 5])], "late 1"),
    "state that counted twice: the key's": (lambda w: [spoiled(w.rows(*FIVE), "n", 4, 1)], "state 1"),
    "the group's count": (lambda w: [spoiled(w.rows(*FIVE), "m", 2, 1)], "state 1"),
    "the group's sum: this row and the next": (lambda w: [spoiled(w.rows(*FIVE), "total", 3, 7)], "state 2"),
}


@pytest.mark.parametrize(("history", "verdict"), VERDICTS.values(), ids=VERDICTS)
def test_a_history_gets_its_verdict(history: Callable[[World], list[Rows]], verdict: str) -> None:
    audit = SinkAudit(TRUTH)
    observations = history(World())
    for number, rows in enumerate(observations, 1):
        audit.observe(f"record {number}", rows)
    assert told(audit.figures) == verdict
    assert audit.figures.right is not bool(verdict)
    assert audit.figures.observations == len(observations)
    assert bool(audit.figures.examples) is bool(verdict)


def test_what_is_lost_is_named():
    audit = SinkAudit(TRUTH)
    audit.observe("record 1", World().rows(0, 1, 2, 5))
    assert "missing below the highest seen; first 3" in " ".join(audit.figures.examples)


def test_a_torn_file_makes_the_verdict_wrong():
    audit = SinkAudit(TRUTH)
    audit.torn("record 1", "part-1 has another hash than its record says")
    assert told(audit.figures) == "torn 1"
    assert not audit.figures.right


def test_the_audit_knows_until_when_every_split_is_visible():
    audit = SinkAudit(TRUTH)
    world = World()
    audit.observe("record 1", world.rows(0, 2, 4))
    assert audit.due_ns == 0  # no row of split 1 yet
    audit.observe("record 2", world.rows(1, 3))
    assert audit.due_ns == 1_003
    assert audit.positions == (3, 2)


def test_json_lines_are_read_in_the_order_of_the_file_and_broken_ones_refused():
    lines = b"".join(
        b'{"value":%d,"key":1,"group":1,"due_ns":9,"n":1,"m":1,"total":%d}\n' % (value, value) for value in (3, 1, 2)
    )
    assert parsed("part.jsonl", lines).value.tolist() == [3, 1, 2]
    with pytest.raises(ValueError, match="JSON"):
        parsed("part.jsonl", lines[:-9])


# ---------------------------------------------------------------- the reader


class Target:
    """A target in the state in which the totals sink leaves a target, made with the production commit log."""

    def __init__(self, folder):
        self.folder = folder
        self._log = CommitLog(open_store(str(folder)), workload.JOB, workload.TOTALS)
        self._totals = {}

    def commit(self, checkpoint, values, rows=None):
        lines = []
        for value in values:
            group = value % workload.KEYS % workload.GROUPS
            m, total = self._totals.get(group, (0, 0))
            self._totals[group] = (m + 1, total + value)
            row = {"value": value, "key": value % workload.KEYS, "group": group, "due_ns": 1_000 + value}
            lines.append(row | {"n": value // workload.KEYS + 1, "m": m + 1, "total": total + value})
        name = f"part-{checkpoint:08d}.jsonl"
        data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        (self.folder / name).write_bytes(data)
        file = CommittedFile(name, hashlib.sha256(data).hexdigest(), len(lines) if rows is None else rows)
        self._log.append(checkpoint, 1, [file], lambda _: (1, checkpoint))
        return self.folder / name


def test_the_reader_sees_record_by_record_and_knows_when_what_was_due_became_visible(tmp_path):
    target = Target(tmp_path)
    view = SinkView(tmp_path, workload.TOTALS)
    target.commit(1, range(8))
    view.poll()
    target.commit(2, range(8, 20))
    view.poll()
    view.poll()
    assert view.audit.figures.right, view.audit.figures
    assert (view.records, view.audit.figures.rows, view.audit.positions) == (2, 20, (5, 5, 5, 5))
    first, second = (tmp_path / "_commits" / workload.JOB / workload.TOTALS / f"{n:020d}.json" for n in (1, 2))
    assert view.committed_after(1_003) == first.stat().st_mtime_ns  # each split has shown rows due up to 1,004
    assert view.committed_after(1_004) == second.stat().st_mtime_ns
    assert view.committed_after(1_016) is None


@pytest.mark.parametrize("spoil", ["missing", "changed", "cut", "rows", "again"])
def test_the_reader_finds_a_file_that_is_not_what_its_record_says(tmp_path, spoil):
    target = Target(tmp_path)
    file = target.commit(1, range(8), rows=9 if spoil == "rows" else None)
    if spoil == "missing":
        file.unlink()
    elif spoil == "changed":
        file.write_bytes(file.read_bytes().replace(b'"value": 3', b'"value": 2'))
    elif spoil == "cut":
        file.write_bytes(file.read_bytes()[:-9])
    elif spoil == "again":
        record = next((tmp_path / "_commits" / workload.JOB / workload.TOTALS).iterdir())
        record.with_name(f"{2:020d}.json").write_bytes(record.read_bytes())
    view = SinkView(tmp_path, workload.TOTALS)
    view.poll()
    assert view.audit.figures.torn
    assert not view.audit.figures.right


def test_folder_reader_finds_files_that_are_unrecorded_changed_or_vanished(tmp_path):
    target = Target(tmp_path)
    kept, changed, vanished = (target.commit(number, [number - 1]) for number in (1, 2, 3))
    stray = tmp_path / "part-stray.jsonl"
    stray.write_bytes(b"{}\n")
    folder = FolderView(tmp_path)
    folder.poll({})
    view = SinkView(tmp_path, workload.TOTALS)
    view.poll()
    assert folder.compare(view.files) == ([stray.name], [])
    vanished.unlink()
    recorded = {**view.files, changed.name: "another hash"}
    assert folder.compare(recorded) == ([stray.name], [changed.name, vanished.name])
    assert kept.exists()


# ---------------------------------------------------------------- the plan


def test_the_same_seed_gives_the_same_plan_and_another_seed_another_one():
    first, again, other = (list(itertools.islice(plan(seed), 200)) for seed in (7, 7, 8))
    assert first == again
    assert first != other


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_plan_holds_every_kind_of_fault_bursts_and_strikes_into_recoveries(seed):
    actions = list(itertools.islice(plan(seed), 110))
    kinds = {action.kind for action in actions}
    assert {*KILLS, *STORE, "stall slot", "stall executor", "stall coordinator", "stall driver"} <= kinds
    assert {"fill disk", "restart", "takeover"} <= kinds
    assert {action.when for action in actions} == {"healthy", "now", "recovering"}
    assert sum(action.kind in KILLS for action in actions) >= 25
    assert all(action.hold_s > 0 for action in actions if action.kind in STORE or action.kind.startswith("stall"))


def test_recovery_times_are_of_single_strikes_and_of_the_last_strike_of_a_burst():
    def strike(at_ns, when="healthy"):
        return Strike(Action("kill slot", when, 0.0), at_ns, 1, "", "running", when == "healthy")

    strikes = [strike(10**9), strike(20 * 10**9), strike(21 * 10**9, "now"), strike(40 * 10**9)]
    done = [4 * 10**9, 26 * 10**9]
    single, compound = recoveries(strikes, lambda ns: next((each for each in done if each > ns), None))
    assert (single["kill slot"].count, single["kill slot"].max) == (1, 3.0)
    assert compound is not None
    assert (compound.count, compound.max) == (1, 5.0)


# ---------------------------------------------------------------- the proxy


class Store(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_PUT(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.applied.append((self.path, body))
        self.send_response(200)
        self.send_header("Content-Length", "4")
        self.end_headers()
        self.wfile.write(b"done")

    def log_message(self, *_):
        """Quiet."""


@pytest.fixture
def applied_and_proxy():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Store)
    server.applied = []
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        with store_proxy(server.server_address[1]) as proxy:
            yield server.applied, proxy
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def put(proxy, path="/bucket/key", timeout=10):
    connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=timeout)
    try:
        connection.request("PUT", path, body=b"bytes", headers={"Expect": "100-continue"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_the_proxy_passes_requests_on_whole(applied_and_proxy):
    applied, proxy = applied_and_proxy
    assert put(proxy) == (200, b"done")
    assert applied == [("/bucket/key", b"bytes")]


def test_a_refused_request_and_a_503_are_not_applied(applied_and_proxy):
    applied, proxy = applied_and_proxy
    proxy.set(Fault("refuse"))
    with pytest.raises((ConnectionError, http.client.HTTPException)):
        put(proxy)
    proxy.set(Fault("error"))
    status, body = put(proxy)
    assert (status, applied) == (503, [])
    assert b"<Code>SlowDown</Code>" in body


def test_a_cut_answer_is_lost_after_its_request_was_applied(applied_and_proxy):
    """An unknown outcome of the protocol (rule 2 of the log; bugs 1 to 3)."""
    applied, proxy = applied_and_proxy
    proxy.set(Fault("cut", seed=3))
    for _ in range(4):
        with pytest.raises((ConnectionError, http.client.HTTPException)):
            put(proxy)
    assert len(applied) == 4
    assert proxy.set(Fault()).cut == 4


def test_hanging_request_is_neither_answered_nor_applied_and_is_cut_with_the_fault(applied_and_proxy):
    applied, proxy = applied_and_proxy
    proxy.set(Fault("hang"))
    outcome = []

    def hang():
        try:
            outcome.append(put(proxy, timeout=60))
        except (ConnectionError, http.client.HTTPException) as error:
            outcome.append(type(error))

    waiting = threading.Thread(target=hang)
    waiting.start()
    until(lambda: proxy.counts().hang == 1, "the request had arrived")
    assert (applied, outcome) == ([], [])
    proxy.set(Fault())
    waiting.join()
    assert applied == []
    assert outcome != [(200, b"done")]


def test_only_a_share_of_the_requests_to_a_path_is_spoiled(applied_and_proxy):
    applied, proxy = applied_and_proxy
    proxy.set(Fault("error", share=0.5, path="/log/", seed=1))
    statuses = [put(proxy, "/bucket/log/1")[0] for _ in range(40)]
    assert {200, 503} == set(statuses)
    assert {put(proxy, "/bucket/data/1")[0] for _ in range(10)} == {200}
    assert len(applied) == statuses.count(200) + 10


# ---------------------------------------------------------------- finding processes


def test_processes_and_sockets_are_found_by_mark_and_only_the_same_process_is_hit(tmp_path):
    run = tmp_path.name
    code = "import socket, sys; s = socket.create_server(('127.0.0.1', 0)); print('up', flush=True); sys.stdin.read()"
    child = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, MARK: f"{run}/1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert child.stdout.readline() == b"up\n"
        assert [found.pid for found in family(run)] == [child.pid]
        assert family(run, 1)
        assert not family(run, 2)
        assert not family(run + "x")
        found = family(run)[0]
        sockets = listeners_of({child.pid})
        assert len(sockets) == 1
        assert sockets <= all_listeners()
        assert not send(replace(found, started=found.started - 1), signal.SIGKILL)
        assert send(found, signal.SIGKILL)
        child.wait()
        assert not send(found, signal.SIGKILL)
        assert not family(run)
        assert not sockets & all_listeners()
    finally:
        child.kill()
        child.communicate()


# ---------------------------------------------------------------- the real thing


@pytest.mark.long(170)
@pytest.mark.spark
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_short_chaos_loses_doubles_tears_and_leaves_nothing(tmp_path, seed):
    """T3, Z3, Z8, Z9, F1, F3, F4, F6, F9, F11, R3. In seven strikes the first seed has a stalled slot, a killed slot,
    an executor killed in the recovery, a full disk, all processes at once, a slow store, and meanwhile the
    coordinator.
    """
    result = chaos(Chosen(minutes=0.5, kills=4, seed=seed), tmp_path / "chaos", print)
    assert result.clean, result.why_not
    assert result.kills_in_all >= 4
