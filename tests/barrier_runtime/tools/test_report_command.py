"""`barrier-runtime report`: from a running coordinator, and for an ended job from the checkpoints alone."""

from pathlib import Path

import pytest
from coordinator_world import options, spec
from tcp_slot import TcpSlot

from barrier_runtime.coordinator.client.embedded import EmbeddedCoordinator
from barrier_runtime.coordinator.wire.messages import CheckpointComplete, Deploy, Start, Trigger
from barrier_runtime.state.errors import InvalidJob, Unavailable
from barrier_runtime.tools.views import report
from tests.waiting import until

JOB = spec(checkpoints=options(interval_ms=50))


@pytest.mark.slow
def test_a_report_of_a_running_job_and_of_the_same_job_when_it_has_ended(tmp_path: Path) -> None:
    to = tmp_path / "report.html"
    store = str(tmp_path / "store")
    with EmbeddedCoordinator(store) as coordinator:
        secret = bytes.fromhex(coordinator.submit(JOB).secret)
        slots = [TcpSlot(JOB.job, JOB.run_id, secret, index).connect(coordinator.control_address) for index in (0, 1)]
        for slot in slots:
            slot.until(Deploy)
        for slot in slots:
            slot.until(Start)
        number = max([slot.until(Trigger).checkpoint for slot in slots])
        for slot in slots:
            slot.ack(number)
        for slot in slots:
            slot.until(CheckpointComplete)
        token_file = coordinator._directory / "driver.token"
        size = report("flights", to, coordinator.url, token_file, None, None)
        running = to.read_text()
        assert size == len(to.read_bytes())
        assert ">RUNNING</span>" in running
        assert token_file.read_text() not in running
        with pytest.raises(InvalidJob, match="nothing says that it has ended"):
            report("flights", to, None, None, None, store)
        coordinator.client.stop("flights", "now")
        until(lambda: coordinator.client.status("flights").outcome, "the end")
        for slot in slots:
            slot.close()
    assert report("flights", to, None, None, None, store) > 1_000
    ended = to.read_text()
    assert ">STOPPED</span>" in ended
    assert f'<td class="n">{number}</td>' in running
    assert f'<td class="n">{number}</td>' in ended
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "store"], "nothing is left beside it"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("http://127.0.0.1:1", None, None, "x"), "leave one of them out"),
        (("http://127.0.0.1:1", None, None, None), "--coordinator http://127.0.0.1:1: add --token-file"),
    ],
)
def test_what_is_given_wrongly_is_refused_with_the_remedy(tmp_path: Path, given: tuple, said: str) -> None:
    with pytest.raises(InvalidJob, match=said):
        report("flights", tmp_path / "report.html", *given)


def test_a_job_that_is_not_there_and_a_file_that_cannot_be_written_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidJob, match=r"job flights in .*: there is no log of it: check both names"):
        report("flights", tmp_path / "report.html", None, None, None, str(tmp_path / "store"))
    with pytest.raises(InvalidJob, match=r"job name '\.\./x' is not allowed"):
        report("../x", tmp_path / "report.html", None, None, None, str(tmp_path / "store"))
    from barrier_runtime.tools.views import write

    with pytest.raises(InvalidJob, match=r"cannot be written to .*none/report.html: No such file or directory"):
        write(tmp_path / "none" / "report.html", b"x")


def test_a_daemon_that_does_not_answer_is_named(tmp_path: Path) -> None:
    token = tmp_path / "daemon.token"
    token.write_text("t" * 64)
    token.chmod(0o600)
    with pytest.raises(Unavailable, match=r"coordinator http://127.0.0.1:1 does not answer"):
        report("flights", tmp_path / "report.html", "http://127.0.0.1:1", token, None, None)
    assert not (tmp_path / "report.html").exists()
