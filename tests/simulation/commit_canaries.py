"""Planted bugs in commits that are slower than checkpoints."""

from collections.abc import Iterator
from unittest.mock import patch

from canaries import canary

from barrier_runtime.coordinator.checkpoints import commits, slowness


@canary("trigger-ignores-the-bound", "checkpoints are taken however many of them sinks have still to commit")
def _trigger_ignores_the_bound() -> Iterator[None]:
    with patch.object(commits.CommitTracker, "too_far_behind", ""):
        yield


@canary("slow-upload-is-not-told", "an upload that takes longer than the interval is not told of", "bank")
def _slow_upload_is_not_told() -> Iterator[None]:
    with patch.object(slowness.SlowUploads, "look", lambda *_, **__: None):
        yield


@canary("slow-commit-is-not-told", "a sink that does not keep up with checkpoints is not told of")
def _slow_commit_is_not_told() -> Iterator[None]:
    with patch.object(slowness.SlowCommits, "look", lambda *_, **__: None):
        yield
