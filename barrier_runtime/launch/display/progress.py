"""What a person who runs a job is told of it: a line per sink, and one per thing that died. Pure: statuses to text.

`Follower` compares each status with the one before. What died is told once, when the job runs again (with how long that
took), or after 5 s if it does not by then.
"""

from barrier_runtime.coordinator.status.health import what_died
from barrier_runtime.coordinator.status.status import JobStatus, RecoveryStatus, TakeoverStatus

_HANGS_MS = 5_000  # a recovery that lasts longer is told while it goes on
_LONGEST = 160  # characters of a reason
_LEAST_S = 0.5  # a rate over less time says nothing
_NAME = 12  # characters of a sink's name that are shown, however narrow the terminal is


class Follower:
    """`happened` gives the lines about what died since the status before. Each is given once."""

    def __init__(self) -> None:
        self._ran = False  # before, nothing has died that was of use already
        self._told: set[int] = set()  # generations whose recovery has been told to its end
        self._hanging: set[int] = set()  # those of which it was told that they go on
        self._takeovers = 0
        self._rate: float | None = None
        self._at: tuple[int, int] | None = None  # clock and records of the sources at the last measured rate

    def happened(self, status: JobStatus) -> list[str]:
        lines = []
        if not self._ran:  # what was before this program began is not news, and a start is not a recovery
            self._ran = status.phase == "running"
            self._takeovers = status.taken_over
            self._told = {each.token for each in status.recoveries}
        for recovery in status.recoveries:
            if recovery.token in self._told:
                continue
            line = self._recovery(status, recovery)
            if line:
                lines.append(f"job {status.job}: {line}")
        new = status.taken_over - self._takeovers
        if new > 0:
            self._takeovers = status.taken_over
            lines += [f"job {status.job}: {_takeover(each)}" for each in status.takeovers[-new:]]
        return lines

    def _recovery(self, status: JobStatus, recovery: RecoveryStatus) -> str:
        if recovery.running_ms is not None:
            self._told.add(recovery.token)
            took_ms = recovery.running_ms - recovery.started_ms
            return f"{_short(what_died(recovery.reason))}; {_begins(status)}; back after {took_ms:,} ms"
        lasts_ms = status.at_ms - recovery.started_ms
        if lasts_ms < _HANGS_MS or recovery.token in self._hanging:
            return ""
        self._hanging.add(recovery.token)
        waits = f", waits for {_slots(status.missing_slots)}" if status.missing_slots else ""
        return f"{_short(what_died(recovery.reason))}; {_begins(status)}; not back after {lasts_ms / 1000:.0f} s{waits}"

    def lines(self, status: JobStatus, width: int | None = None) -> list[str]:
        """One for each sink; one for the job while it has no figures of a sink. What does not fit into `width` columns
        is told in fewer words, and then the name of the sink is cut."""
        rate = self._rows_per_s(status)
        speed = "" if rate is None else f", {rate:,.0f}/s"
        heads = [f"{status.records:,} rows{read}{speed}" for read in (" read", "")]
        if status.phase != "running":
            why = f" ({_short(what_died(status.reason))})" if status.reason else ""
            heads = [f"{status.phase}{why}", status.phase]
        sinks = sorted({name for chain in status.chains for name in chain.sinks})
        if not sinks:
            return [f"{status.job}: {heads[0]}"]
        whole, brief = heads
        return [
            _fitting(sink, width, whole + _in_words(status, sink), brief + _in_brief(status, sink)) for sink in sinks
        ]

    def _rows_per_s(self, status: JobStatus) -> float | None:
        """Of all sources, since the last status half a second ago or more. None: not known yet."""
        if self._at is None or status.records < self._at[1]:
            self._at, self._rate = (status.at_ms, status.records), None
        passed_s = (status.at_ms - self._at[0]) / 1000
        if passed_s >= _LEAST_S:
            self._rate = (status.records - self._at[1]) / passed_s
            self._at = status.at_ms, status.records
        return self._rate


def _takeover(takeover: TakeoverStatus) -> str:
    if not takeover.ended or takeover.away_ms is None:
        return "another coordinator process leads now; the slots went on"
    return f"the coordinator, {_short(takeover.ended)}; the slots went on; back after {takeover.away_ms:,} ms"


def _begins(status: JobStatus) -> str:
    if not status.restored_checkpoint:
        return "all slots begin again from the start"
    return f"all slots go on from checkpoint {status.restored_checkpoint}"


def _slots(missing: tuple[int, ...]) -> str:
    return f"slot{'s' if len(missing) > 1 else ''} " + ", ".join(map(str, missing[:8]))


def _fitting(sink: str, width: int | None, whole: str, brief: str) -> str:
    line = f"{sink}: {whole}"
    if width is None or len(line) <= width:
        return line
    room = max(_NAME, width - len(brief) - 2)
    name = sink if len(sink) <= room else f"{sink[: room - 1]}…"
    return f"{name}: {brief}"


def _in_words(status: JobStatus, sink: str) -> str:
    upto, failing, latencies = _of_sink(status, sink)
    parts = [] if upto is None else [f"visible through checkpoint {upto}"]
    parts += [f"{kind} p99 {p99:,.0f} ms" for kind, p99 in latencies.items()]
    if failing:
        parts.append(f"its commit has failed {failing} time{'s' if failing > 1 else ''}")
    return "".join(f" · {part}" for part in parts)


def _in_brief(status: JobStatus, sink: str) -> str:
    """Latencies as processed/visible."""
    upto, failing, latencies = _of_sink(status, sink)
    parts = [] if upto is None else [f"checkpoint {upto}"]
    if failing:
        parts.append(f"{failing} failed commit{'s' if failing > 1 else ''}")
    if latencies:
        parts.append(f"p99 {'/'.join(f'{p99:,.0f}' for p99 in latencies.values())} ms")
    return "".join(f" · {part}" for part in parts)


def _of_sink(status: JobStatus, sink: str) -> tuple[int | None, int, dict[str, float]]:
    """The checkpoint through which its rows are visible; how often its commit has failed; p99 by kind, in ms."""
    through = [upto for key, upto in status.commits.through.items() if key.rpartition("/")[0] == sink]
    told = {kind: status.latency_last_minute.get(f"{sink}:{kind}") for kind in ("processed", "visible")}
    troubles = [each for each in status.commits.troubles if each.sink.rpartition("/")[0] == sink]
    latencies = {kind: latency.p99 for kind, latency in told.items() if latency is not None and latency.count}
    return min(through, default=None), max((each.attempts for each in troubles), default=0), latencies


def _short(text: str) -> str:
    """The first line: a traceback is in the status and on the page."""
    first = text.strip().splitlines()[0] if text.strip() else "the job was interrupted"
    return first if len(first) <= _LONGEST else f"{first[: _LONGEST - 1]}…"
