"""All latency histograms of one slot: one per sink and kind, for the life of the slot."""

from dataclasses import dataclass, field

from barrier_runtime.data.latency import LatencyRecorder


@dataclass
class LatencyBook:
    """`record("windows:visible", ns, rows)`; `encoded()` goes into heartbeats."""

    recorders: dict[str, LatencyRecorder] = field(default_factory=dict)

    def record(self, name: str, latency_ns: int, rows: int) -> None:
        recorder = self.recorders.get(name)
        if recorder is None:
            recorder = self.recorders[name] = LatencyRecorder()
        recorder.record(latency_ns, rows)

    def encoded(self) -> dict[str, str]:
        return {name: recorder.encoded() for name, recorder in self.recorders.items()}
