"""Checks of flows with `mode="at_most_once"`: each part must skip rows without doubling any.
Design: docs/design/at-most-once.md.
"""

from collections.abc import Sequence

from barrier_runtime.connectors.end_seeking import EndSeekingSource
from barrier_runtime.graph.logical import Node, SourceNode, StepNode
from barrier_runtime.graph.updates import RUNNING
from barrier_runtime.state.errors import InvalidJob

AT_MOST_ONCE = "at_most_once"
# Kinds of steps that never emit rows of their restored state again.
_EMIT_AT_ONCE = frozenset({"running aggregate", "deduplicate", "process", "process_groups"})


def check_at_most_once(nodes: Sequence[Node]) -> None:
    for node in nodes:
        if isinstance(node, SourceNode):
            _check_source(node)
        elif node.is_sink:
            _check_sink(node)
        elif node.stateful and not _emits_at_once(node):
            raise InvalidJob(
                f'step {node.name!r} ({node.kind}) does not go with mode="at_most_once": after a failure its state is '
                "that of the last checkpoint, and the step would emit rows again that it has emitted since. Without "
                "timers and windows: running aggregates, deduplicate, process and process_groups. Use one of these, "
                "or another mode"
            )


def _emits_at_once(node: StepNode) -> bool:
    """Running aggregates may go by the wall clock: `emit="latest"` holds rows outside of state."""
    return node.kind in _EMIT_AT_ONCE and node.timeless and (node.kind == RUNNING or not node.by_wall_clock)


def refuse_sinks_without_mode(nodes: Sequence[Node]) -> None:
    for node in nodes:
        if isinstance(node, StepNode) and node.is_sink and node.guarantee == AT_MOST_ONCE:
            raise InvalidJob(
                f"sink {node.name!r} ({node.describe}) is at most once, but in this mode the sources replay rows after "
                'a failure, and the sink would write them again: run the flow with mode="at_most_once"'
            )


def _check_source(node: SourceNode) -> None:
    source = node.source
    if isinstance(source, EndSeekingSource):
        why = source.not_to_end()
    else:
        why = "the source has no present end to seek to"
    if why:
        raise InvalidJob(
            f'source {node.name!r} does not go with mode="at_most_once", which seeks to the end of the input after a '
            f"failure: {why}. Read from Kafka without until=, or use another mode"
        )


def _check_sink(node: StepNode) -> None:
    if node.guarantee == AT_MOST_ONCE:
        return
    if node.guarantee == "exactly_once":
        why = (
            "the sink writes the rows of a checkpoint after the decision, also after a failure, and drops all rows "
            "since: a transaction per checkpoint, which replay alone completes"
        )
    else:
        why = "the sink cannot stop an earlier process that still writes, so rows could be written twice"
    raise InvalidJob(
        f'sink {node.name!r} ({node.describe}) does not go with mode="at_most_once": {why}. Use '
        'KafkaSink(guarantee="at_most_once"), or another mode'
    )
