"""A part of a job's past run again in this process: without its sinks, and without a write to where its state is."""

from barrier_runtime.replay.observing import ReplayedRow as ReplayedRow
from barrier_runtime.replay.replaying import Replayed as Replayed
from barrier_runtime.replay.replaying import replay as replay
from barrier_runtime.replay.verifying import Divergence as Divergence
from barrier_runtime.replay.verifying import Verified as Verified
from barrier_runtime.replay.verifying import verify as verify
