"""A real terminal for tests: windows of a private tmux server. Tests compare the text that a person would see."""

import os
import shlex
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.waiting import until

REMEDY = "tmux is missing: sudo apt-get install tmux (or: make servers)"


class Terminal:
    """Terminal for tests. Use as a context manager: the end closes all windows and ends their programs."""

    def __init__(self, folder: Path) -> None:
        if shutil.which("tmux") is None:
            pytest.fail(REMEDY)
        self._folder = folder
        self._base = ["tmux", "-S", str(folder / "tmux"), "-f", "/dev/null"]
        self._environment = {**os.environ, "LC_ALL": "C.UTF-8", "SHELL": "/bin/sh"}
        # pytest imports readline, which exports the terminal size to child processes; programs trust this size more
        # than their own terminal (workers of pytest-xdist are such children: 80 columns without a terminal).
        for name in ("TMUX", "COLUMNS", "LINES"):
            self._environment.pop(name, None)

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run([*self._base, "kill-server"], capture_output=True, check=False)

    def open(self, columns: int, rows: int, command: Sequence[str], name: str) -> "Window":
        """Runs `command` in a window of the given size. The command's output stays; Ctrl-C reaches the command, not its
        shell.
        """
        file = self._folder / f"{name}.exit"
        folder, code = shlex.quote(str(self._folder)), shlex.quote(str(file))
        line = f"trap : INT; cd {folder}; {shlex.join(command)}; echo $? > {code}; exec cat"
        size = ["-x", str(columns), "-y", str(rows)]
        self._tmux("new-session", "-d", "-s", name, *size, line)
        return Window(self._tmux, name, file)

    def _tmux(self, *arguments: str) -> str:
        done = subprocess.run(
            [*self._base, *arguments], capture_output=True, text=True, check=True, env=self._environment
        )
        return done.stdout


class Window:
    def __init__(self, tmux: Callable[..., str], name: str, exit_file: Path) -> None:
        self._tmux = tmux
        self._name = name
        self._exit_file = exit_file

    @property
    def lines(self) -> list[str]:
        """Lines of the screen, and above them the scrolled lines; wrapped lines stay in parts."""
        shown = self._tmux("capture-pane", "-p", "-t", self._name, "-S", "-")
        return [line.rstrip() for line in shown.rstrip().splitlines()]

    @property
    def text(self) -> str:
        """The same with lines put together that the terminal has wrapped."""
        return self._tmux("capture-pane", "-p", "-J", "-t", self._name, "-S", "-")

    @property
    def ended_with(self) -> int | None:
        text = self._exit_file.read_text().strip() if self._exit_file.exists() else ""
        return int(text) if text else None

    def press(self, key: str) -> None:
        self._tmux("send-keys", "-t", self._name, key)

    def resize(self, columns: int, rows: int) -> None:
        self._tmux("resize-window", "-t", self._name, "-x", str(columns), "-y", str(rows))

    def until(self, what: str, shown: Callable[[str], object]) -> str:
        """Waits until the text on the screen matches. Returns the text."""
        seen: list[str] = []

        def looks() -> bool:
            seen[:] = [self.text]
            return bool(shown(seen[0]))

        try:
            until(looks, what)
        except AssertionError as error:
            raise AssertionError(f"{error}; the screen shows:\n{seen[0]}") from None
        return seen[0]
