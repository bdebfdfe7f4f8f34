"""A progress bar: a line on standard error with the current step."""

from types import TracebackType

from tqdm import tqdm


class Progress:
    """`with Progress(steps, "what") as progress: progress.say("now this"); …; progress.step()`"""

    def __init__(self, steps: int, what: str) -> None:
        self._bar = tqdm(total=steps, desc=what, unit="run", dynamic_ncols=True)

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.close()

    def say(self, now: str) -> None:
        self._bar.set_postfix_str(now)

    def note(self, line: str) -> None:
        """Prints a line that stays, above the bar."""
        self._bar.write(line)

    def step(self) -> None:
        self._bar.update()
