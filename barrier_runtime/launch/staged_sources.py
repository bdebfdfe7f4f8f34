"""Sources that put their rows into storage before the job starts: when that is done, and when it is undone."""

import logging
from collections.abc import Iterator

from barrier_runtime.connectors.source import StagedSource
from barrier_runtime.graph.job_graph import JobGraph
from barrier_runtime.state.errors import BarrierRuntimeError

log = logging.getLogger("barrier_runtime.job")


def stage_sources(graph: JobGraph, storage: str, *, fresh: bool) -> bool:
    """True when there are such sources: the flow is to be compiled again then, for their splits are known only now."""
    sources = list(_staged(graph))
    for source in sources:
        source.stage(graph.name, storage, fresh=fresh)
    return bool(sources)


def unstage_sources(graph: JobGraph, storage: str) -> None:
    """Once the job has finished. Trouble is told and left: the job's result stands."""
    for source in _staged(graph):
        try:
            source.unstage(graph.name, storage)
        except BarrierRuntimeError as error:
            log.warning("job %s: the staged rows of a source stay behind: %s", graph.name, error)


def has_staged_sources(graph: JobGraph) -> bool:
    return any(True for _ in _staged(graph))


def _staged(graph: JobGraph) -> Iterator[StagedSource]:
    for chain in graph.chains:
        if chain.source is not None and isinstance(chain.source.source, StagedSource):
            yield chain.source.source
