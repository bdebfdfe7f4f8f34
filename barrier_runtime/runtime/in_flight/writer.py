"""Recorder of the rows in flight to a subtask while a snapshot is taken.

At most one checkpoint is recorded at a time. The channels record (`InputChannel.record`); the recorder holds references
to existing batches until they are stored, and puts the batches of all channels into one order.
"""

from collections.abc import Callable, Iterable
from itertools import chain, zip_longest
from typing import TypeAlias

from barrier_runtime.data.elements import Batch, within
from barrier_runtime.runtime.network.channels import InputChannel

InFlightData: TypeAlias = dict[int, list[Batch]]  # port of the first operator -> batches in their order


class InFlightWriter:
    def __init__(self, inputs: list[InputChannel]) -> None:
        self._inputs = inputs
        self._checkpoint = 0  # 0: nothing is recorded
        self._left: list[tuple[int, Batch]] = []
        self._channels: list[tuple[int, int, list[Batch]]] = []  # port, limit of event time in ms, batches

    def begin(
        self, checkpoint: int, left: Iterable[tuple[int, Batch]], channels: Iterable[int], others: Callable[[int], int]
    ) -> None:
        """Records `channels` for `checkpoint`, after the (port, batch) pairs `left`.

        `others(index)`: lowest watermark (ms) of the channels other than `index`, which limits event time at the rows
        of channel `index`. `finish` stores the limit with the rows: after a restore the other channels do not send
        their watermarks again before these rows.
        """
        self.drop(self._checkpoint)
        self._checkpoint = checkpoint
        self._left = list(left)
        self._channels = [
            (self._inputs[index].port, others(index), self._inputs[index].record(checkpoint)) for index in channels
        ]

    def finish(self, checkpoint: int) -> InFlightData:
        """Returns all rows recorded for `checkpoint`.

        Batches of different channels alternate, as when they are read.
        """
        assert checkpoint == self._checkpoint, f"recorded for checkpoint {self._checkpoint}, wanted is {checkpoint}"
        in_flight: InFlightData = {}
        in_turns = zip_longest(
            *([(port, within(batch, others_ms)) for batch in batches] for port, others_ms, batches in self._channels)
        )
        for each in chain(self._left, chain.from_iterable(in_turns)):
            if each is not None:
                in_flight.setdefault(each[0], []).append(each[1])
        self.drop(checkpoint)
        return in_flight

    def drop(self, checkpoint: int) -> None:
        if checkpoint != self._checkpoint:
            return
        self._checkpoint, self._left, self._channels = 0, [], []
        for channel in self._inputs:
            channel.stop_recording()
