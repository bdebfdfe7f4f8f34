"""Stacks of all threads; several samples tell waiting from working threads."""

import linecache
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import TypeAlias

SAMPLES = 10
PAUSE_S = 0.02
MOST_FRAMES = 60  # innermost

_Stack: TypeAlias = tuple[tuple[str, int, str], ...]  # file, line, function; outermost first


def sampled_stacks(first: int | None = None, pause: Callable[[float], None] = time.sleep) -> list[str]:
    """A text per distinct stack.

    `first`: id of the thread whose stacks come first. Omits the calling thread. Takes `SAMPLES` times `PAUSE_S`.
    """
    seen: dict[_Stack, Counter[int]] = {}
    for sample in range(SAMPLES):
        if sample:
            pause(PAUSE_S)
        for thread, frame in sys._current_frames().items():
            if thread != threading.get_ident():
                seen.setdefault(_stack(frame), Counter())[thread] += 1
    names = {thread.ident: thread.name for thread in threading.enumerate()}

    def rank(each: tuple[_Stack, Counter[int]]) -> tuple[bool, int]:
        return first not in each[1], -max(each[1].values())

    return [_text(stack, threads, names) for stack, threads in sorted(seen.items(), key=rank)]


def _stack(frame: FrameType | None) -> _Stack:
    found: list[tuple[str, int, str]] = []
    while frame is not None and len(found) < MOST_FRAMES:
        found.append((frame.f_code.co_filename, frame.f_lineno or 0, frame.f_code.co_name))
        frame = frame.f_back
    return tuple(reversed(found))


def _text(stack: _Stack, threads: Counter[int], names: dict[int | None, str]) -> str:
    who = ", ".join(f"{names.get(thread, f'thread {thread}')}: {count}" for thread, count in threads.most_common())
    lines = [f"{who} of {SAMPLES} samples"]
    for file, number, function in stack:
        lines.append(f'  File "{file}", line {number}, in {function}')
        code = linecache.getline(file, number).strip()
        if code:
            lines.append(f"    {code}")
    return "\n".join(lines)
