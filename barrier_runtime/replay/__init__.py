"""Runs a part of a job's past again, without sinks and writes to the job's store."""

from barrier_runtime.replay.observing import ReplayedRow as ReplayedRow
from barrier_runtime.replay.replaying import Replayed as Replayed
from barrier_runtime.replay.replaying import replay as replay
from barrier_runtime.replay.verifying import Divergence as Divergence
from barrier_runtime.replay.verifying import Verified as Verified
from barrier_runtime.replay.verifying import verify as verify
