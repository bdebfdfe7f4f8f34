"""`barrier-runtime status` against a real daemon: the whole state as JSON, and in one line whether the job gets on."""

import time

import msgspec
import pytest
from command_line import run_here
from coordinator_world import options, spec
from test_daemon import Daemon, running_slots

from barrier_runtime.coordinator.client.rest_types import JobSummary
from barrier_runtime.coordinator.status.status import JobStatus
from barrier_runtime.coordinator.status.why.reason import Answer
from barrier_runtime.coordinator.wire.messages import RestartOptions

JOB = spec(
    checkpoints=options(interval_ms=50, min_pause_ms=70, max_concurrent=4),
    restart=RestartOptions(strategy="failure_rate", max_failures=3),
    progress_timeout_ms=600_000,
    slot_timeout_ms=600_000,
)


def status(daemon, *job):
    address = f"http://127.0.0.1:{daemon.sockets[1].getsockname()[1]}"
    done = run_here("status", *job, "--json", "--coordinator", address, "--token-file", str(daemon.token_file))
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


@pytest.fixture
def daemon(tmp_path):
    with Daemon(tmp_path) as running:
        yield running


@pytest.mark.slow
def test_the_command_tells_what_a_job_waits_for_and_with_which_options(daemon):
    daemon.submit(JOB)
    whole, line = status(daemon, "flights")
    known = msgspec.json.decode(whole, type=JobStatus)
    assert known.condition == "STARTING"
    assert line == f"job flights: STARTING: {known.condition_reason}\n"
    shown = known.options
    assert (shown["interval_ms"], shown["min_pause_ms"], shown["max_concurrent"]) == (70, 70, 1)
    assert shown["restart"] == "failure_rate: 3 failures within 60 s, 0.2 s before each restart"
    assert shown["progress_timeout_ms"] == 600_000


def waits_for_its_slots(daemon):
    """Submits the job, and returns when the log is read and fenced."""
    daemon.submit(JOB)
    latest = time.monotonic() + 120
    while (phase := msgspec.json.decode(status(daemon, "flights")[0], type=JobStatus).phase) != "waiting":
        assert time.monotonic() < latest, f"the job is {phase} after two minutes"
        time.sleep(0.01)


@pytest.mark.slow
def test_for_people_it_is_tables(daemon):
    waits_for_its_slots(daemon)
    address = f"http://127.0.0.1:{daemon.sockets[1].getsockname()[1]}"
    where = ("--coordinator", address, "--token-file", str(daemon.token_file))
    jobs, one = run_here("status", *where), run_here("status", "flights", *where)
    assert (jobs.returncode, one.returncode) == (0, 0), jobs.stderr + one.stderr
    assert jobs.stdout.splitlines()[0].split() == ["job", "phase", "condition"]
    assert jobs.stdout.splitlines()[1].split()[:3] == ["flights", "waiting", "STARTING:"]
    assert one.stdout.startswith("job flights: waiting, STARTING: waits for slots 0, 1 of 2 to register")
    watched = run_here("top", "flights", *where)  # no terminal: prints once
    assert watched.returncode == 0, watched.stderr
    assert watched.stdout.startswith("job flights: waiting, STARTING")


def why(daemon, *arguments):
    address = f"http://127.0.0.1:{daemon.sockets[1].getsockname()[1]}"
    return run_here("why", *arguments, "--coordinator", address, "--token-file", str(daemon.token_file))


@pytest.mark.slow
def test_why_of_a_job_that_waits_for_its_slots_tells_how_many_came(daemon):
    waits_for_its_slots(daemon)
    told = why(daemon, "flights")
    assert told.returncode == 0, told.stderr
    assert told.stdout.startswith("Job flights does not start: it needs 2 slots, 0 have come.")
    assert "What to do: every slot occupies a core" in told.stdout
    answer = msgspec.json.decode(why(daemon, "flights", "--json").stdout, type=Answer)
    assert [reason.cause for reason in answer.reasons] == ["cores"]


@pytest.mark.slow
def test_why_of_a_checkpoint_that_is_not_known_names_those_that_are(daemon):
    daemon.submit(JOB)
    told = why(daemon, "flights", "42")
    assert told.returncode != 0
    assert "checkpoint 42 of job flights is not known: the history has none yet" in told.stderr


@pytest.mark.slow
def test_the_list_of_jobs_tells_it_of_each(daemon):
    slots = running_slots(daemon, JOB)  # their connections are open for as long as they are known here
    daemon.submit(msgspec.structs.replace(JOB, job="trains"))
    whole, lines = status(daemon)
    jobs = {each.job: each for each in msgspec.json.decode(whole, type=list[JobSummary])}
    assert jobs["flights"].condition == "RUNNING"
    assert jobs["trains"].condition == "STARTING"
    assert lines.splitlines() == ["job flights: RUNNING", f"job trains: STARTING: {jobs['trains'].condition_reason}"]
    for slot in slots:
        slot.close()
