"""The kept log records, and the stacks of threads, of a process."""

import logging
import sys
import threading
from typing import Any

import pytest

from barrier_runtime.runtime.host.inspection import (
    MOST_CHARACTERS,
    SAMPLES,
    OwnLog,
    bounded,
    refusal_of,
    sampled_stacks,
)

log = logging.getLogger("kept")


@pytest.fixture(autouse=True)
def usual_handlers() -> Any:
    before = logging.Logger.callHandlers
    yield
    logging.Logger.callHandlers = before  # type: ignore[method-assign]


def test_the_last_records_are_kept_with_their_tracebacks_and_bounded() -> None:
    own = OwnLog(most=3)
    log.warning("before")
    with own.kept():
        for number in range(4):
            log.warning("record %d", number)
        try:
            raise ValueError("of the step")
        except ValueError:
            log.exception("failed")
        log.error("x" * 1_000_000)
    log.warning("after")
    kept = own.lines()
    assert len(kept) == 3
    assert kept[0].endswith("Z WARNING kept: record 3")
    assert kept[1].splitlines()[0].endswith("ERROR kept: failed")
    assert kept[1].endswith("ValueError: of the step")
    assert len(kept[2]) < MOST_CHARACTERS + 100
    assert "characters are left out" in kept[2]


def test_handlers_and_a_later_configuration_work_as_without_notes(capsys: pytest.CaptureFixture[str]) -> None:
    root, handlers = logging.getLogger(), logging.getLogger().handlers[:]
    root.handlers[:] = []
    try:
        with OwnLog().kept():
            log.warning("by the last resort")
            assert "by the last resort" in capsys.readouterr().err
            logging.basicConfig(stream=sys.stdout, format="configured %(message)s", force=False)
            log.warning("now")
            assert "configured now" in capsys.readouterr().out
    finally:
        root.handlers[:] = handlers


def test_arguments_that_do_not_fit_raise_nothing_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)
    own = OwnLog()
    with own.kept():
        log.warning("%d rows", "no")
    assert "(a message that raises TypeError)" in own.lines()[0]


def test_the_first_of_several_users_begins_anew_and_the_last_ends_the_notes() -> None:
    own, usual = OwnLog(), logging.Logger.callHandlers
    with own.kept():
        log.warning("one")
        with own.kept():
            log.warning("two")
        log.warning("three")
        assert [each.rpartition(" ")[2] for each in own.lines()] == ["one", "two", "three"]
    assert logging.Logger.callHandlers is usual
    with own.kept():
        assert own.lines() == []


def test_a_function_of_the_program_stays_and_records_are_kept_behind_it() -> None:
    own = OwnLog()
    for _ in range(2):
        with own.kept():
            ours = logging.Logger.callHandlers

            def marked(logger: logging.Logger, record: logging.LogRecord, ours: Any = ours) -> None:
                ours(logger, record)

            logging.Logger.callHandlers = marked  # type: ignore[method-assign]
            log.warning("kept")
            assert own.lines()
        assert logging.Logger.callHandlers is marked
        log.warning("not kept")
    assert len(own.lines()) == 1


def test_filters_of_a_logger_apply_to_the_notes() -> None:
    class Redacts(logging.Filter):
        def filter(self, record: logging.LogRecord) -> bool:
            record.msg, record.args = "(hidden)", ()
            return record.levelno > logging.WARNING

    own, logger = OwnLog(), logging.getLogger("kept.redacted")
    logger.addFilter(Redacts())
    with own.kept():
        logger.warning("dropped")
        logger.error("card %s", "4111111111111111")
    assert [each.rpartition(": ")[2] for each in own.lines()] == ["(hidden)"]


@pytest.mark.parametrize("given", [(ValueError, "no traceback"), (1, 2, 3, 4)])
def test_malformed_exception_information_raises_nothing(given: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)
    monkeypatch.setattr(log, "propagate", False)
    monkeypatch.setattr(log, "handlers", [logging.NullHandler()])
    own = OwnLog()
    with own.kept():
        log.error("failed", exc_info=given)
    assert "ERROR kept: failed\n(exc_info that raises " in own.lines()[0]


def test_records_made_for_another_purpose_are_not_noted() -> None:
    own = OwnLog()
    with own.kept():
        logging.makeLogRecord({"msg": "for a formatter"})
        log.handle(logging.makeLogRecord({"msg": "nameless", "levelno": logging.DEBUG}))
        log.handle(logging.makeLogRecord({"name": "kept", "levelno": 30, "created": "no time", "msg": "broken"}))
    assert own.lines() == ["(a record raises TypeError)"]


@pytest.mark.parametrize("filling", [0, 20_000])
@pytest.mark.parametrize(
    "secret",
    [
        "-----BEGIN RSA PRIVATE KEY-----\n" + "\n".join(["SECRET" * 10] * 60) + "\n-----END RSA PRIVATE KEY-----",
        'password="' + "SECRET" * 500 + '"',
        'password="' + "SECRET" * 3_000 + '"',
    ],
)
def test_a_secret_across_a_cut_is_masked_as_a_whole(secret: str, filling: int) -> None:
    own = OwnLog()
    with own.kept():
        for before, after in ((100, 3_000), (1_900, 1_000), (2_500, 100), (10_000, 100)):
            log.warning("%s %s %s", "x" * (before + filling), secret, "y\n" * (after // 2))
            log.warning("%s %s %s", "x" * before, secret, "y\n" * ((after + filling) // 2))
    assert len(own.lines()) == 8
    assert "SECRET" not in "".join(bounded(own.lines()))


@pytest.mark.slow
def test_a_text_whose_masking_takes_quadratic_time_is_cut_before() -> None:
    (shown,) = bounded(["://a:b" * 200_000])  # takes half an hour without the cut
    assert "characters are left out" in shown


def test_a_refusal_is_masked_bounded_and_can_be_sent() -> None:
    refused = refusal_of("OSError: password=hunter2 half \ud800 a pair " + "x" * 5_000)
    assert refused.startswith("OSError: password=****** half \\ud800 a pair")
    assert len(refused.encode()) < 1_100


def test_secrets_are_masked_and_an_answer_is_bounded() -> None:
    assert bounded(["password=hunter2", "half \ud800 a pair"]) == ("password=******", "half \\ud800 a pair")
    assert bounded(["a" * 60, "b" * 60, "c"], most_bytes=100) == ("a" * 60,)


def test_a_waiting_thread_has_one_stack_in_all_samples_and_the_asked_one_comes_first() -> None:
    ended, waits = threading.Event(), threading.Event()

    def of_this_test() -> None:
        waits.set()
        ended.wait()

    threads = [threading.Thread(target=of_this_test, name=f"waiting-{number}") for number in range(2)]
    for thread in threads:
        thread.start()
    waits.wait()
    try:
        stacks = sampled_stacks(threads[1].ident)
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    assert f"waiting-1: {SAMPLES}" in stacks[0]
    assert "in of_this_test\n    ended.wait()" in stacks[0]
    assert "sampled_stacks" not in "".join(stacks), "not the thread that takes them"
