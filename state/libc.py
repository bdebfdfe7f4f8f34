"""The C library of this process."""

import ctypes
from functools import cache


@cache
def libc() -> ctypes.CDLL:
    """Loads the library once. `ctypes.get_errno` has the error of a call."""
    return ctypes.CDLL(None, use_errno=True)
