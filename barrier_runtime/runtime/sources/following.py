"""Sources that are read after other inputs have ended: the switch of `Stream.followed_by`.

The subtask of the step knows when every channel of the first input has ended, and all subtasks of the earlier sources
have such a channel. So a source that follows begins in each slot after the earlier input was read in every slot,
without a message to the coordinator, and a restored job finds the same answer again.

Event time follows the first input until its end. Then the later channels count, also before their first row: a slot
whose later source is slow would otherwise find its first rows late.
"""

from collections.abc import Sequence
from functools import partial

from barrier_runtime.runtime.network.input_queues import InputQueues
from barrier_runtime.runtime.subtask import Subtask

_EARLIER = 0  # port of the input that is read first


def connect_followers(subtasks: Sequence[Subtask]) -> None:
    """Connects the sources of a slot to the steps whose first input ends before these sources are read."""
    inputs = {name: subtask.queues for subtask in subtasks for name, _ in subtask.chain.operators}
    for subtask in subtasks:
        if subtask.source is not None and (steps := subtask.source[1].follows_in):
            for step in steps:
                inputs[step].read_in_turn(_EARLIER)
            subtask.source[1].follow(partial(_have_ended, [inputs[step] for step in steps]))


def _have_ended(inputs: Sequence[InputQueues]) -> bool:
    return all(queues.has_ended(_EARLIER) for queues in inputs)
