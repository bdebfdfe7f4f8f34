"""Mutants of lookups, and of the runtime's work for operators that hold rows."""

from tests.mutants.mutant import Mutant

_BOOK = "barrier_runtime/operators/lookups/book.py"
_OPERATOR = "barrier_runtime/operators/lookups/operator.py"
_SUBTASK = "barrier_runtime/runtime/subtask.py"
_CHAIN = "barrier_runtime/runtime/operator_chain.py"
_BOOK_TESTS = ("tests/barrier_runtime/operators/lookups/test_lookup_book.py",)
_OPERATOR_TESTS = ("tests/barrier_runtime/operators/lookups/test_lookup_operator.py",)
_HOLDING_TESTS = ("tests/barrier_runtime/runtime/test_holding_operators.py",)

MUTANTS = (
    Mutant(
        "late-replies-count",
        "a reply to a request that was given up is not known any more",
        _BOOK,
        "        return self._open.pop(request, None)\n",
        "        return self._open.get(request)\n",
        _BOOK_TESTS,
    ),
    Mutant(
        "replied-rows-overtake-watermarks",
        "no row goes out before a watermark that came before it",
        _BOOK,
        "                elif section is first:\n",
        "                elif True:\n",
        _BOOK_TESTS,
    ),
    Mutant(
        "watermarks-overtake-rows-under-way",
        "a watermark waits for the rows before it",
        _BOOK,
        "        while not self._sections[0].left and (reached",
        "        while (reached",
        _BOOK_TESTS,
    ),
    Mutant(
        "restored-rows-are-asked-for-at-once",
        "no more than the capacity is under way, whatever was restored",
        _BOOK,
        "            end = min(len(keys), begin + self._settings.capacity - self._under_way)\n",
        "            end = len(keys)\n",
        _BOOK_TESTS,
    ),
    Mutant(
        "keys-in-flight-are-asked-for-twice",
        "rows of one key share a request",
        _BOOK,
        "                waiting = asked.get(key)\n",
        "                waiting = None\n",
        _BOOK_TESTS,
    ),
    Mutant(
        "expired-replies-stay",
        "a reply is kept for its time",
        "barrier_runtime/operators/lookups/replies.py",
        "        if entry is None or entry[0] <= now_s:\n",
        "        if entry is None:\n",
        _BOOK_TESTS,
    ),
    Mutant(
        "rows-under-way-are-lost",
        "rows whose reply is awaited belong to the snapshot",
        _OPERATOR,
        "        remaining = self._held.remaining()\n        return Capture(",
        "        remaining = self._held.remaining()[1:]\n        return Capture(",
        _OPERATOR_TESTS,
    ),
    Mutant(
        "rows-that-went-out-are-restored",
        "a row that was completed before the barrier is not in the snapshot",
        "barrier_runtime/operators/lookups/held_rows.py",
        "None if block.gone is None else ~block.gone\n",
        "None\n",
        _OPERATOR_TESTS,
    ),
    Mutant(
        "rows-under-way-go-to-all",
        "at another parallelism a row in flight goes to one subtask",
        _OPERATOR,
        "            if snapshot.subtask % context.parallelism == context.subtask and",
        "            if",
        _OPERATOR_TESTS,
    ),
    Mutant(
        "barriers-wait-for-replies",
        "rows before a barrier are taken without room",
        _SUBTASK,
        "        if not self.chain.first.takes_rows_before_barriers:\n",
        "        if True:\n",
        _HOLDING_TESTS,
    ),
    Mutant(
        "full-lookups-take-what-comes",
        "only rows before a barrier are taken without room",
        "barrier_runtime/runtime/network/input_queues.py",
        "            if channel.readable and self.is_awaited(channel, done, wanted):\n",
        "            if channel.readable:\n",
        _HOLDING_TESTS,
    ),
    Mutant(
        "rows-taken-ahead-give-credit",
        "what is taken without room makes no room for its sender",
        "barrier_runtime/runtime/network/channels.py",
        "        if ahead:\n            self._owed += size\n        else:\n            self._took(size)\n",
        "        self._took(size)\n",
        _HOLDING_TESTS,
    ),
    Mutant(
        "the-end-overtakes-replies",
        "the end of the input waits for the rows that an operator holds",
        _SUBTASK,
        "        if self.chain.first.unfinished:\n            return False\n        self._end()\n",
        "        self._end()\n",
        _HOLDING_TESTS,
    ),
    Mutant(
        "idleness-overtakes-replies",
        "that the input is idle is told when the rows before are out",
        _CHAIN,
        "        if self.inputs_idle and not self.first.unfinished:\n",
        "        if self.inputs_idle:\n",
        _HOLDING_TESTS,
    ),
    Mutant(
        "held-watermarks-go-on",
        "behind an operator that holds watermarks only its own is told",
        _CHAIN,
        "            if operator.holds_watermarks:\n                self.advancing = None\n"
        "                self._tell_own(position)\n                return\n",
        "",
        _HOLDING_TESTS,
    ),
)
