"""Parts of `make hosts`: the table, one line on a machine without namespaces, and nothing left by a killed run."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hosts import namespaces, planted
from tests.hosts.namespaces import why_forbidden
from tests.hosts.plan import SHORT, SPARK, every
from tests.hosts.spark_world import WORKERS
from tests.hosts.summary import Injury, Result, table, zeros
from tests.integration.chaos.verdict import Figures
from tests.waiting import until

_HELD = """
import subprocess, sys, time
from tests.hosts import namespaces
from tests.hosts.namespaces import Network, enter, is_inside
if not is_inside():
    enter([sys.executable, *sys.orig_argv[1:]])
network = Network(["one", "other"], getattr(namespaces, sys.argv[2]))
server = (
    "import socket, sys\\n"
    "family = socket.AF_INET6 if ':' in sys.argv[1] else socket.AF_INET\\n"
    "print(socket.create_server((sys.argv[1], 7000), family=family).accept()[1][0], flush=True)"
)
command = network.command("one", [sys.executable, "-c", server, network.address("one"), sys.argv[1]])
waits = subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE, text=True)
client = (
    "import socket, sys, time\\n"
    "while True:\\n"
    "    try: socket.create_connection((sys.argv[1], 7000), 1); break\\n"
    "    except OSError: time.sleep(0.05)\\n"
)
apart, closed = network.apart("one", "other"), network.closed("one", "7001-7009")
with network.cut("other"), network.deaf("one"), network.mute("one"), apart, closed:
    pass
with network.narrow("one", "1mbit"):
    subprocess.run(network.command("other", [sys.executable, "-c", client, network.address("one")]), check=True)
print(waits.stdout.readline().strip() == network.address("other"), flush=True)
waits = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)", sys.argv[1]], start_new_session=True)
print("held", flush=True)
waits.wait()
"""


def injury(fault: str, recovery_s: float) -> Injury:
    return Injury(fault, 5, 1, None, recovery_s, 7.0)


def result(*injuries: Injury, why_not: tuple[str, ...] = ()) -> Result:
    return Result(
        clean=not why_not,
        why_not=why_not,
        injuries=injuries,
        rows={"counted": 1_000, "totals": 1_000},
        observations={"counted": 7, "totals": 5},
        zeros=zeros([Figures(), Figures(lost=len(why_not))]),
        daemons=1,
        slot_timeout_s=4,
        seconds=60,
        load_average=1.0,
    )


def test_table_has_a_row_per_fault_with_median_and_maximum() -> None:
    lines = table(result(injury("store's host cut off", 1), injury("store's host cut off", 4))).splitlines()
    assert lines[1].split() == ["store's", "host", "cut", "off,", "5", "s", "2", "-", "-", "2.5", "4.0", "7.0", "2"]
    assert "lost 0, duplicated 0" in "\n".join(lines)
    assert lines[-1] == "CLEAN"


def test_table_says_what_is_wrong() -> None:
    lines = table(result(why_not=("a row is lost",))).splitlines()
    assert any(line.startswith("lost 1, ") for line in lines)
    assert lines[-1] == "NOT CLEAN: a row is lost"


def test_every_fault_of_the_short_form_is_in_the_long_form() -> None:
    assert {fault.name for fault in SHORT} <= {fault.name for fault in every([5])}
    assert {fault.seconds for fault in every([5, 60, 300])} == {5, 60, 300}


@pytest.mark.slow
def test_clock_of_a_host_follows_the_injected_skew(tmp_path: Path) -> None:
    skew = tmp_path / "skew"
    told = "import time, sys; print(time.time_ns()); sys.stdin.readline(); time.sleep(0.1); print(time.time_ns())"
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).with_name("skewed")), "HOSTS_SKEW": str(skew)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", told], env=env, **pipes) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        true_ns = int(process.stdout.readline())
        skew.write_text("-86400")
        process.stdin.write("\n")
        process.stdin.flush()
        assert int(process.stdout.readline()) < true_ns


def test_each_planted_fault_is_of_a_host_of_its_own() -> None:
    hosts = [host for job in planted.JOBS for host in job if host != "sound"]
    assert sorted(hosts) == sorted(planted.EXPECTED)
    assert len(hosts) == 6


def test_spark_form_kills_each_kind_of_process() -> None:
    names = {fault.name for fault in SPARK}
    assert {"SIGKILL of a slot", "SIGKILL of an executor"} < names
    assert {f"{host}'s host loses power" for host in ("worker-0", "daemon", "standby", "driver")} < names
    assert {f"{host}'s host cut off" for host in WORKERS} < names
    assert "workers apart until output" in names


@pytest.mark.slow
def test_machine_without_the_tools_is_named_in_one_line(tmp_path: Path) -> None:
    lookup = {**os.environ, "PATH": str(tmp_path)}
    program = (
        "import tests.hosts.namespaces as n; n._PATH = n.os.environ['PATH']; import tests.hosts.run as r; r.main()"
    )
    done = subprocess.run([sys.executable, "-c", program], env=lookup, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    assert line.startswith("hosts: not run, ")
    assert "nft" in line or "Linux" in line


def test_a_kernel_that_lacks_what_a_run_needs_is_named_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lacks = tmp_path / "tc"
    lacks.write_text("#!/bin/sh\necho 'unknown qdisc tbf' >&2\nexit 2\n")
    lacks.chmod(0o755)
    monkeypatch.setattr(namespaces, "_PATH", os.pathsep.join([str(tmp_path), namespaces._PATH]))
    why = why_forbidden()
    assert why
    assert "\n" not in why


@pytest.mark.parametrize("family", ["IPV4", "IPV6"])
def test_killed_run_leaves_no_process_namespace_or_link(tmp_path: Path, family: str) -> None:
    why = why_forbidden()
    mark = str(tmp_path)
    if why:
        assert "\n" not in why
        return
    before = _links(), _namespaces()
    running = subprocess.Popen([sys.executable, "-c", _HELD, mark, family], stdout=subprocess.PIPE, text=True)
    try:
        assert running.stdout is not None
        assert running.stdout.readline() == "True\n"
        assert running.stdout.readline() == "held\n"
        assert _pids(mark), "the child of the run is seen from outside"
        assert (_links(), _namespaces()) == before
    finally:
        running.send_signal(signal.SIGKILL)
        running.communicate()
    until(lambda: not _pids(mark), "all processes of the run have ended")
    assert (_links(), _namespaces()) == before


def _pids(mark: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark.encode() in (entry / "cmdline").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:  # exited meanwhile
            continue
    return found


def _links() -> list[str]:
    return sorted(each.name for each in Path("/sys/class/net").iterdir() if each.name.startswith(("to-", "switch")))


def _namespaces() -> list[str]:
    folder = namespaces.PRIVATE / "netns"
    return sorted(os.listdir(folder)) if folder.exists() else []
