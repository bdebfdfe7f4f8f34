"""Different values that a database considers equal.

As keys of upserts, two rows with such values would become one.

Each function marks such values of a column. A sink refuses marked values in key columns that its target compares in
this way. Pure.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def negative_zeros(values: pa.Array) -> pa.Array:
    """Marks -0.0 in a column of floats: -0.0 compares equal to 0.0."""
    numbers = values.cast(pa.float64()).to_numpy(zero_copy_only=False)
    return pa.array((numbers == 0) & np.signbit(numbers), pa.bool_())


def with_trailing_spaces(values: pa.Array) -> pa.Array:
    """Marks texts that equal other texts if the database ignores trailing spaces."""
    return pc.ends_with(values, " ")


def below_microseconds(values: pa.Array) -> pa.Array:
    """Marks times in nanoseconds that equal other times if the database stores only whole microseconds."""
    numbers = pc.fill_null(values.view(pa.int64()), 0).to_numpy()
    return pa.array(numbers % 1_000 != 0)
