"""For tests of users: `from barrier_runtime.testing import certify`. See `docs/writing-a-sink.md`."""

from barrier_runtime.testing.certification import Certificate as Certificate
from barrier_runtime.testing.certification import NotCertified as NotCertified
from barrier_runtime.testing.certification import certify as certify
