"""Place in the user's program that a warning names."""

import sys

_PACKAGE = __name__.partition(".")[0]


def users_line() -> int:
    """Number of calls up to the user's program, as `warnings` counts them."""
    call, level = sys._getframe(1), 1  # `inspect.stack` would read the sources of all calls
    while call.f_back is not None and call.f_globals.get("__name__", "").partition(".")[0] == _PACKAGE:
        call, level = call.f_back, level + 1
    return level
