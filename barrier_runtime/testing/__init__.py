"""Tests for users.

`certify` is for sinks (docs/writing-a-sink.md), `KeyedHarness` for keyed functions (docs/state.md), `ConnectedHarness`
for functions of several inputs (docs/connect.md), `check` for whole flows (docs/testing.md).
"""

import importlib
from typing import TYPE_CHECKING, Any

from barrier_runtime.testing.certification import Certificate as Certificate
from barrier_runtime.testing.certification import NotCertified as NotCertified
from barrier_runtime.testing.certification import certify as certify
from barrier_runtime.testing.connected_harness import ConnectedHarness as ConnectedHarness
from barrier_runtime.testing.connected_harness import ConnectedHarnessSnapshot as ConnectedHarnessSnapshot
from barrier_runtime.testing.function_harness import HarnessSnapshot as HarnessSnapshot
from barrier_runtime.testing.function_harness import KeyedHarness as KeyedHarness

if TYPE_CHECKING:
    from barrier_runtime.testing.flows.check import Checked as Checked
    from barrier_runtime.testing.flows.check import CheckFailed as CheckFailed
    from barrier_runtime.testing.flows.check import check as check
    from barrier_runtime.testing.flows.outputs import CheckedSink as CheckedSink

_SIMULATED = {  # only these need greenlet
    "Checked": "barrier_runtime.testing.flows.check",
    "CheckFailed": "barrier_runtime.testing.flows.check",
    "CheckedSink": "barrier_runtime.testing.flows.outputs",
    "check": "barrier_runtime.testing.flows.check",
}


def __getattr__(name: str) -> Any:
    if name not in _SIMULATED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(_SIMULATED[name]), name)
    except ImportError as error:
        if error.name != "greenlet":
            raise
        raise ImportError(
            f"barrier_runtime.testing.{name} needs greenlet ({error}): pip install 'barrier-runtime[testing]'"
        ) from None
