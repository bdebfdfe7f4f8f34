"""Mutants of steps with several inputs, and of the state that all their subtasks share."""

from tests.mutants.mutant import Mutant

_TESTS = "tests/barrier_runtime/operators/functions/test_connect.py"

MUTANTS = (
    Mutant(
        "snapshot-reads-a-copy-that-changes",
        "broadcast rows behind a barrier are not in the snapshot of that barrier",
        "barrier_runtime/operators/state/broadcast_copy.py",
        "            self._entries, self._captured = dict(self._entries), False\n",
        "            self._captured = False\n",
        (f"{_TESTS}::test_what_comes_behind_a_barrier_is_not_in_its_snapshot",),
    ),
    Mutant(
        "changed-content-is-named-as-stored",
        "content of broadcast state that has changed is uploaded",
        "barrier_runtime/operators/state/broadcast_copy.py",
        "                if value in self._stored and self._stored[value][0] == version\n",
        "                if value in self._stored\n",
        (f"{_TESTS}::test_content_that_a_decided_checkpoint_has_stored_is_named_again_until_it_changes",),
    ),
    Mutant(
        "copies-are-not-compared",
        "a checkpoint is decided only if what its subtasks share is the same in each",
        "coordinator/checkpoints/agreement.py",
        "            if value != agreed:\n",
        "            if value is None:\n",
        (f"{_TESTS}::test_copies_that_differ_are_in_no_checkpoint",),
    ),
    Mutant(
        "broadcast-output-of-every-subtask",
        "what a broadcast handler yields goes out once, whatever the parallelism",
        "barrier_runtime/operators/functions/connected.py",
        "            if self._speaks:\n                given.rows += rows\n",
        "            given.rows += rows\n",
        (_TESTS,),
    ),
    Mutant(
        "broadcast-handler-has-the-last-key",
        "a handler of broadcast rows cannot touch state of whatever key came last",
        "barrier_runtime/operators/functions/connected.py",
        "            current.key, context.key = without_key, None\n",
        "            context.key = None\n",
        (_TESTS,),
    ),
    Mutant(
        "keyed-side-writes",
        "only handlers of broadcast inputs change broadcast state",
        "barrier_runtime/operators/functions/connected.py",
        '        finally:\n            self._copies.changes = ""\n',
        "        finally:\n            pass\n",
        (_TESTS,),
    ),
    Mutant(
        "subtasks-are-given-their-own-alone",
        "at the same parallelism every subtask is given what subtask 0 has stored for all",
        "coordinator/log/restore_choice.py",
        "            wanted.append(_shared(snapshot))\n",
        "            pass\n",
        ("tests/coordinator/log/test_manifest.py",),
    ),
    Mutant(
        "barriers-overtake-rows-for-all",
        "rows for all subtasks are in flight in no checkpoint",
        "barrier_runtime/runtime/network/wiring.py",
        "if edge.partitioning in _ALIGNED]",
        'if edge.partitioning == "forward"]',
        ("tests/barrier_runtime/runtime/test_connected_jobs.py",),
    ),
)
