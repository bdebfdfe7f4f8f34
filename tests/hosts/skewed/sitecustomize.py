"""Injected host name; wall clock, which adds the seconds in the file `HOSTS_SKEW`; versions in `HOSTS_VERSIONS`.

Python imports this module at its start.
"""

import os
import socket
import time

_LOOK_S = 0.05
_given = os.environ.get("HOSTS_SKEW", "")
_true_ns = time.time_ns
_skew_ns, _next_look_s = 0, 0.0


def _skewed_ns() -> int:
    global _skew_ns, _next_look_s
    now_s = time.monotonic()
    if now_s >= _next_look_s:
        _next_look_s = now_s + _LOOK_S
        try:
            with open(_given) as file:
                _skew_ns = round(float(file.read() or 0) * 1e9)
        except FileNotFoundError:
            _skew_ns = 0
    return _true_ns() + _skew_ns


if _given:
    time.time_ns = _skewed_ns
    time.time = lambda: _skewed_ns() / 1e9


def _claim(versions: "dict[str, str]") -> None:
    import platform
    from importlib import metadata

    true = metadata.version
    metadata.version = lambda name: versions.get(name) or true(name)
    python = versions.get("Python", platform.python_version())
    platform.python_version = lambda: python


if _versions := os.environ.get("HOSTS_VERSIONS", ""):
    _claim(dict(pair.split("=") for pair in _versions.split()))

if _name := os.environ.get("BARRIER_RUNTIME_TEST_HOST", ""):
    socket.gethostname = lambda: _name
