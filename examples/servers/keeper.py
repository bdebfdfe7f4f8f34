"""Keeper of a server: starts the server, and ends all processes of the server.

The end comes on order, or when the ordering process is gone.

    python keeper.py <user, "" for this one> <directory> <log file> <command> …

Orders come from standard input: `stop <signal> <seconds>` (ask the server to end, and wait), `kill` (SIGKILL to all
processes). End of input means that the ordering process died: everything is killed and the directory removed. Servers
fork and detach processes as they like (PostgreSQL's backends, RabbitMQ's port mapper): as reaper of all descendants the
keeper finds them all. Exits with the server's exit code when no process of the server is left.
"""

import contextlib
import ctypes
import os
import select
import shutil
import subprocess
import sys
import time

import psutil

_PR_SET_CHILD_SUBREAPER = 36
_LOOK_S = 0.02


def main(user: str, directory: str, log: str, command: list[str]) -> int:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    as_user = {"user": user, "group": user, "extra_groups": []} if user else {}
    with open(log, "ab") as output:
        server = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=directory, **as_user
        )
    order = None
    while server.poll() is None and order is None:
        if select.select([0], [], [], _LOOK_S)[0]:
            order = os.read(0, 100).decode().split()
    if order and order[0] == "stop":
        with contextlib.suppress(ProcessLookupError):
            server.send_signal(int(order[1]))
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(float(order[2]))
    kill_descendants()
    if order == []:
        shutil.rmtree(directory, ignore_errors=True)
    return abs(server.wait())


def kill_descendants() -> None:
    while children := psutil.Process().children(recursive=True):
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(_LOOK_S / 10)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:]))
