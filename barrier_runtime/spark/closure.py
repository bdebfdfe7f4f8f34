"""What travels in Spark's closure, and whether it can: asked before all starts, so that the answer names the operator.

Spark would find out too, but only when it submits the stage, with a stack of its own and after everything is up.
"""

from types import ModuleType
from typing import Any

from barrier_runtime.graph.job_graph import JobGraph
from barrier_runtime.state.errors import InvalidJob


def check_travels(graph: JobGraph) -> None:
    """Raise `InvalidJob` for the first source or operator that cannot be pickled into Spark's closure."""
    cloudpickle = _cloudpickle()
    for chain in graph.chains:
        parts: list[tuple[str, Any]] = [(operator.name, operator) for operator in chain.operators]
        if chain.source is not None:
            parts.insert(0, (chain.source.name, chain.source))
        for name, part in parts:
            try:
                cloudpickle.dumps(part)
            except InvalidJob as error:
                raise InvalidJob(f"operator {name!r}: {error}") from error
            except Exception as error:  # of many kinds: every object may refuse in its own way
                raise InvalidJob(
                    f"operator {name!r} cannot be sent to Spark's workers ({error}): its function refers to something "
                    "that cannot be copied, such as a lock, a connection or an open file; make that inside the function"
                ) from error


def ship_by_value(module: ModuleType) -> None:
    """Functions and classes of a user's `module`, which no worker can import, are pickled whole instead of by name."""
    _cloudpickle().register_pickle_by_value(module)


def _cloudpickle() -> Any:
    try:
        from pyspark import cloudpickle
    except ImportError as error:
        raise InvalidJob(f"pyspark cannot be imported ({error}): pip install 'barrier-runtime[spark]'") from error
    return cloudpickle
