"""Mutants of steps with several inputs, and of the state that all their subtasks share."""

from tests.mutants.mutant import Mutant

_TESTS = "tests/barrier_runtime/operators/functions/test_connect.py"
_SWITCHING = "tests/barrier_runtime/operators/functions/test_switching.py"

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
        (f"{_TESTS}::test_content_stored_by_a_decided_checkpoint_is_named_again_until_changed",),
    ),
    Mutant(
        "copies-are-not-compared",
        "a checkpoint is decided only if what its subtasks share is the same in each",
        "coordinator/checkpoints/checkpoint.py",
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
        "rules-are-valid-as-they-come",
        "rows of an input that switches at barriers are valid behind the next barrier, no sooner",
        "barrier_runtime/operators/functions/switching.py",
        "        self._waiting.append((input, batch.reaching(None)))\n",
        "        self.due.append((input, batch.reaching(None)))\n",
        (f"{_SWITCHING}::test_rows_between_two_barriers_all_see_the_rules_before_the_first_barrier",),
    ),
    Mutant(
        "rules-of-one-barrier-behind-the-next",
        "rules that came before a barrier are valid before the next one goes on",
        "barrier_runtime/operators/functions/connected.py",
        "    def before_barrier(self, emit: Emit) -> None:\n        self.switch(emit)\n",
        "    def before_barrier(self, emit: Emit) -> None:\n        pass\n",
        (f"{_SWITCHING}::test_rules_become_valid_without_a_further_element_and_before_the_next_barrier",),
    ),
    Mutant(
        "barriers-overtake-rows-in-front-of-a-switch",
        "a barrier behind which rules become valid has come on all inputs, and no row before it is left",
        "barrier_runtime/runtime/network/wiring.py",
        "if edge.aligned or edge.partitioning",
        "if edge.partitioning",
        (f"{_SWITCHING}::test_all_edges_into_the_step_are_aligned_where_rules_wait_for_barriers",),
    ),
    Mutant(
        "switches-at-given-up-barriers-are-forgotten",
        "a checkpoint before which rules became valid behind other barriers in other subtasks is not decided",
        "barrier_runtime/operators/functions/switching.py",
        "        self._barriers = _and(self._barriers, checkpoint)",
        "        pass",
        (f"{_SWITCHING}::test_barrier_aborted_in_a_single_subtask_ends_the_generation_if_rules_switched",),
    ),
    Mutant(
        "waiting-rules-wait-on-at-the-end",
        "rules behind the last barrier are handled when all inputs have ended",
        "barrier_runtime/operators/functions/connected.py",
        "            self._waiting.ended()\n",
        "            pass\n",
        (f"{_SWITCHING}::test_rules_after_the_last_barrier_become_valid_when_all_inputs_have_ended",),
    ),
    Mutant(
        "barriers-overtake-rows-for-all",
        "rows for all subtasks are in flight in no checkpoint",
        "barrier_runtime/runtime/network/wiring.py",
        "edge.partitioning in _ALIGNED]",
        'edge.partitioning == "forward"]',
        ("tests/barrier_runtime/runtime/test_connected_jobs.py",),
    ),
)
