"""A user's module that no worker can import travels by value with the functions in it."""

from types import ModuleType

from barrier_runtime.state.errors import InvalidJob


def ship_by_value(module: ModuleType) -> None:
    """Functions and classes of `module` are pickled whole into Spark's closure instead of by name."""
    try:
        from pyspark import cloudpickle
    except ImportError as error:
        raise InvalidJob(f"pyspark cannot be imported ({error}): pip install 'barrier-runtime[spark]'") from error
    cloudpickle.register_pickle_by_value(module)
