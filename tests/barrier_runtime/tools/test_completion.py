"""Completion of commands and flags, in the shell of a user with a new home folder."""

import os
import subprocess
from pathlib import Path

import pytest
from command_line import COMMAND

# At the Tab key, bash calls the function registered for the command, which fills COMPREPLY.
SHELL = """
barrier-runtime --install-completion
source ~/.bashrc
asked() {
    COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
    $(complete -p barrier-runtime | sed 's/.*-F \\([^ ]*\\) .*/\\1/') barrier-runtime
    echo "$*: ${COMPREPLY[*]}"
}
asked barrier-runtime sta
asked barrier-runtime top --co
asked barrier-runtime state dif
"""


@pytest.mark.slow
def test_an_installed_completion_gives_commands_their_own_commands_and_flags(tmp_path: Path) -> None:
    (tmp_path / ".bashrc").write_text("# of the user\n")
    path = os.pathsep.join([str(Path(COMMAND[0]).parent), os.environ["PATH"]])
    shell = subprocess.run(
        ["bash", "--norc"],
        input=SHELL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={"HOME": str(tmp_path), "PATH": path, "SHELL": "/bin/bash"},
    )
    told = [line for line in shell.stdout.splitlines() if line.startswith("barrier-runtime ")]
    assert [(asked, sorted(given.split())) for asked, given in (line.split(": ") for line in told)] == [
        ("barrier-runtime sta", ["state", "status"]),
        ("barrier-runtime top --co", ["--coordinator"]),
        ("barrier-runtime state dif", ["diff"]),
    ], shell
    assert (tmp_path / ".bashrc").read_text().startswith("# of the user\n"), "what was there stays"
