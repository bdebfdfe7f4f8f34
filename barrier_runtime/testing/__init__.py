"""For tests of users: `certify` for sinks (docs/writing-a-sink.md), `KeyedHarness` for keyed functions
(docs/state.md), `ConnectedHarness` for those of several inputs (docs/connect.md)."""

from barrier_runtime.testing.certification import Certificate as Certificate
from barrier_runtime.testing.certification import NotCertified as NotCertified
from barrier_runtime.testing.certification import certify as certify
from barrier_runtime.testing.connected_harness import ConnectedHarness as ConnectedHarness
from barrier_runtime.testing.connected_harness import ConnectedHarnessSnapshot as ConnectedHarnessSnapshot
from barrier_runtime.testing.keyed_harness import HarnessSnapshot as HarnessSnapshot
from barrier_runtime.testing.keyed_harness import KeyedHarness as KeyedHarness
