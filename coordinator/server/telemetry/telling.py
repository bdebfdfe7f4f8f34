"""All that a daemon tells a collector of OpenTelemetry, from its start to its end."""

import asyncio
import logging
from collections.abc import Callable

from barrier_runtime.coordinator.server.jobs import JobDirectory
from barrier_runtime.coordinator.server.telemetry.otel_metrics import Metering, interval_s, metrics_of
from barrier_runtime.coordinator.server.telemetry.tracing import Tracing, sender_of

log = logging.getLogger("coordinator.tracing")


class Telling:
    """Nothing at all where the environment names no collector."""

    def __init__(self, directory: JobDirectory, now_ms: Callable[[], int]) -> None:
        """Raises `InvalidJob` for settings that do not hold. Call it on a running loop."""
        sender, metrics = sender_of(), metrics_of()
        every_s = 0.0 if metrics is None else interval_s()
        loop = asyncio.get_running_loop()
        self._tasks: list[asyncio.Task[None]] = []
        self._looks: list[Callable[[], None]] = []
        self._closes: list[Callable[[], None]] = []
        if sender is not None:
            tracing = Tracing(directory, sender)
            self._tasks.append(loop.create_task(tracing.run()))
            self._looks.append(tracing.look)
            self._closes.append(sender.close)
        if metrics is not None:
            metering = Metering(directory, metrics, now_ms)
            self._tasks.append(loop.create_task(metering.run(every_s)))
            self._looks.append(metering.look)
            self._closes.append(metrics.close)

    def end(self) -> "asyncio.Future[list[None]]":
        """Takes a last look at the jobs, at once. Done when that is sent, or after about a second."""
        for task in self._tasks:
            task.cancel()
        for look in self._looks:
            try:
                look()
            except Exception:  # whatever it is, the daemon has its jobs to leave in order
                log.exception("the last figures could not be made for the collector")
        return asyncio.gather(*(asyncio.to_thread(close) for close in self._closes))
