"""Users' own aggregates: `RowAggregate` (a Python value per key), `ColumnAggregate` (numpy columns).
State is stored under the name of the output column."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from barrier_runtime.operators.aggregation.functions import Aggregate
from barrier_runtime.operators.aggregation.state_columns import Values
from barrier_runtime.operators.state.stored_type import StoredType
from barrier_runtime.state.errors import InvalidJob


class OwnAggregate(ABC):
    type: pa.DataType  # of results; a class attribute, or set before `super().__init__`
    columns: tuple[str, ...]

    def __init__(self, *columns: str) -> None:
        """Raises `InvalidJob` without columns, or if `type` or the state is not declared."""
        name = type(self).__name__
        if not columns or not all(isinstance(column, str) for column in columns):
            raise InvalidJob(f"{name}{columns!r}: name the columns it is computed of, as in {name}('price')")
        if not isinstance(getattr(self, "type", None), pa.DataType):
            raise InvalidJob(f"{name} does not say what its results are: declare type, such as type = pa.float64()")
        self.columns = columns
        self._check_state()

    @abstractmethod
    def _check_state(self) -> None: ...

    @property
    def merges(self) -> bool:
        """Returns whether the class defines `merge`, which session windows need."""
        return type(self).merge not in (RowAggregate.merge, ColumnAggregate.merge)

    def merge(self, state: Any, later: Any) -> Any:
        """Merges the state of later rows: see the two forms."""
        raise InvalidJob(f"{self} has no merge(): write one, or use other windows than sessions")

    def __str__(self) -> str:
        return f"{type(self).__name__}({', '.join(self.columns)})"


class RowAggregate(OwnAggregate):
    """Base class of aggregates in Python, row by row.

    A subclass declares `type`, of the results, and `state`, the type of the value of `zero`: any type that `ValueState`
    takes. `add` and `merge` may change a state in place, and return the state all the same.

    >>> class Product(RowAggregate):
    ...     type, state = pa.float64(), float
    ...     def zero(self): return 1.0
    ...     def add(self, state, value): return state if value is None else state * value
    ...     def merge(self, state, later): return state * later
    ...     def result(self, state): return state
    >>> keyed.aggregate("growth", total=Product("factor"))
    """

    state: ClassVar[Any]

    def _check_state(self) -> None:
        if not hasattr(type(self), "state"):
            raise InvalidJob(
                f"{type(self).__name__} does not say what its state is: declare state, such as state = float"
            )
        StoredType(type(self).state, "msgpack", f"{type(self).__name__}.state = ")

    @abstractmethod
    def zero(self) -> Any:
        """Returns the state of a key without rows."""

    @abstractmethod
    def add(self, state: Any, /, *values: Any) -> Any:
        """Returns the state with a further row. `values`: of the columns, None for null."""

    def merge(self, state: Any, later: Any, /) -> Any:
        """Returns the state of the rows of both: those of `state`, then those of `later`.
        Needed by session windows.
        """
        return super().merge(state, later)

    @abstractmethod
    def result(self, state: Any, /) -> Any:
        """Returns a value of `type`, or None. Must not change the state."""


class ColumnAggregate(OwnAggregate):
    """Base class of aggregates in numpy, many rows at a time.

    A subclass declares `type`, of the results, and `state`: name of a column -> numpy dtype of a number, or (dtype,
    initial value); the default initial value is 0.

    >>> class Range(ColumnAggregate):
    ...     type = pa.float64()
    ...     state = {"low": ("float64", np.inf), "high": ("float64", -np.inf)}
    ...     def add(self, state, groups, values):
    ...         np.minimum.at(state["low"], groups, values)
    ...         np.maximum.at(state["high"], groups, values)
    ...     def merge(self, state, later):
    ...         np.minimum(state["low"], later["low"], out=state["low"])
    ...         np.maximum(state["high"], later["high"], out=state["high"])
    ...     def result(self, state): return state["high"] - state["low"]
    """

    state: ClassVar[Mapping[str, Any]]

    def _check_state(self) -> None:
        self.storage()

    def storage(self) -> dict[str, tuple[str, int | float]]:
        """Returns the columns, as name -> (dtype, initial value). Raises `InvalidJob` unless all are numbers."""
        return columns_of_numbers(type(self).__name__, getattr(type(self), "state", None))

    @abstractmethod
    def add(self, state: dict[str, Values], groups: npt.NDArray[np.intp], /, *values: Values) -> None:
        """Changes `state` in place: an array per column, with an element per key.

        `groups`: each row's element; numbers repeat, so use `np.add.at(state["total"], groups, values)` and the like.
        `values`: a numpy array per column of the aggregate, without rows that have a null. A key's rows are in order of
        arrival.
        """

    def merge(self, state: dict[str, Values], later: dict[str, Values], /) -> None:
        """Changes `state` in place: adds the rows of each element of `later`. Needed by session windows."""
        super().merge(state, later)

    @abstractmethod
    def result(self, state: dict[str, Values], /) -> Any:
        """Returns a numpy or Arrow array with each element's result. Must not change `state`."""


def columns_of_numbers(name: str, declared: Any) -> dict[str, tuple[str, int | float]]:
    if not isinstance(declared, Mapping) or not declared:
        raise InvalidJob(
            f"{name} does not say what its state is: declare state, such as state = {{'total': 'float64'}}"
        )
    found: dict[str, tuple[str, int | float]] = {}
    for column, kind in declared.items():
        dtype, initial = kind if isinstance(kind, tuple) else (kind, 0)
        refused = f"{name}.state[{column!r}] = {kind!r} is not a numpy dtype of a number: use 'int64' or 'float64'"
        try:
            known = np.dtype(dtype)
            known.type(initial)
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidJob(f"{refused} ({error})") from error
        if known.kind not in "iuf":
            raise InvalidJob(refused)
        found[column] = known.str, initial
    return found


AnyAggregate: TypeAlias = Aggregate | OwnAggregate


def require_merge(aggregates: Mapping[str, Any], where: str) -> None:
    for name, aggregate in aggregates.items():
        if isinstance(aggregate, OwnAggregate) and not aggregate.merges:
            raise InvalidJob(
                f"{where}: sessions that meet become one, but {name}={aggregate} has no merge(): write "
                f"{type(aggregate).__name__}.merge(state, later), or use windows of fixed size"
            )


def columns_used(aggregates: Iterable[AnyAggregate]) -> list[str]:
    return [column for aggregate in aggregates for column in aggregate.columns]
