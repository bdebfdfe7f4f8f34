"""Values that a database takes for equal although they differ: as keys of upserts two rows of them would become one.

Each function gives which values of a column are such; a sink refuses those of its key columns that its target compares
in this way. Pure.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def negative_zeros(values: pa.Array) -> pa.Array:
    """-0.0, which compares equal to 0.0; of floats."""
    numbers = values.cast(pa.float64()).to_numpy(zero_copy_only=False)
    return pa.array((numbers == 0) & np.signbit(numbers), pa.bool_())


def with_trailing_spaces(values: pa.Array) -> pa.Array:
    """Texts that equal others where trailing spaces do not count."""
    return pc.ends_with(values, " ")


def below_microseconds(values: pa.Array) -> pa.Array:
    """Times in nanoseconds that equal others when only their whole microseconds are stored."""
    numbers = pc.fill_null(values.view(pa.int64()), 0).to_numpy()
    return pa.array(numbers % 1_000 != 0)
