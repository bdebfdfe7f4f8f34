"""Kinesis source: rows and positions, resharding, limits, outages, retention, and refusals."""

import contextlib
import datetime
import json
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kinesis_world import KinesisWorld, refusal, taken

from barrier_runtime import Dataflow, JsonlSink, KinesisSource
from barrier_runtime.connectors.kinesis import client as kinesis_client
from barrier_runtime.connectors.kinesis import reader as shard_reader
from barrier_runtime.connectors.kinesis.client import POSITION, SPLIT, KinesisClient, KinesisPosition
from barrier_runtime.connectors.source import SplitReader
from barrier_runtime.state.errors import InvalidJob, Unavailable
from tests.state.store.s3_script import Script
from tests.waiting import until

Make = Callable[..., KinesisWorld]
HOUR_MS = 3_600_000


def numbers(begin: int, end: int) -> list[bytes]:
    return [json.dumps(number).encode() for number in range(begin, end)]


def reader_of(world: KinesisWorld, **options: Any) -> Any:
    stream = world.stream(**options)
    (split,) = stream.splits(1)
    return stream.reader(split)


@pytest.mark.slow
def test_every_shard_is_read_with_what_a_record_brings(make_kinesis: Make) -> None:
    world = make_kinesis(3)
    before = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(seconds=1)
    world.put([json.dumps({"user": n, "page": f"p{n}", "more": 1}).encode() for n in range(600)])
    stream = world.stream(value="json", schema={"user": int, "page": str, "absent": float}, until="latest")
    rows = [row for split in stream.splits(2) for row in taken(stream.reader(split), 1_000)]
    assert sorted(row["user"] for row in rows) == list(range(600))
    assert {row["shard"] for row in rows} == {f"shardId-{n:012}" for n in range(3)}
    assert all(row["page"] == f"p{row['user']}" and row["absent"] is None for row in rows)
    assert all(json.loads(row["partition_key"])["user"] == row["user"] for row in rows)
    assert all(row["arrived_at"] >= before for row in rows)
    assert len({(row["shard"], row["sequence_number"]) for row in rows}) == 600


@pytest.mark.slow
def test_a_position_names_the_very_next_row(make_kinesis: Make) -> None:
    world = make_kinesis()
    world.put(numbers(0, 40))
    stream = world.stream(value="string", until="latest")
    (split,) = stream.splits(1)
    reader = stream.reader(split)
    for done in range(0, 40, 7):
        rows = taken(reader, 7, max_rows=3)
        assert [int(row["value"]) for row in rows] == list(range(done, min(done + 7, 40)))
        position = reader.position()
        reader.close()
        reader = stream.reader(split)
        reader.seek(position)
    assert taken(reader, 1) == []
    assert reader.finished


@pytest.mark.slow
def test_a_poll_returns_an_answer_at_most_and_few_answers_are_held(
    make_kinesis: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kinesis_client, "MOST_RECORDS", 100)
    monkeypatch.setattr(shard_reader, "HELD_BYTES", 1_000)
    world = make_kinesis()
    world.put([b"%07d" % number for number in range(1_000)])
    stream = world.stream(value="string", metadata=(), until="latest")
    (split,) = stream.splits(1)
    reader, polls = stream.reader(split), list[list[int]]()
    reader.prepare()
    fetcher = reader._fetcher
    assert fetcher is not None
    until(lambda: fetcher._held_bytes >= 1_000)  # the thread now waits for room
    assert len(fetcher._held) == 2
    while len(polls) < 10:
        polls.append([int(row["value"]) for row in taken(reader, 100)])
        assert fetcher._held_bytes <= 1_000 + 700
        if len(polls) in (1, 5):  # a barrier follows the part
            again = stream.reader(split)
            again.seek(reader.position())
            assert [int(row["value"]) for row in taken(again, 1)] == [len(polls) * 100]
            again.close()
    assert polls == [list(range(first, first + 100)) for first in range(0, 1_000, 100)]
    reader.close()


def written(folder: Path) -> list[int]:
    return sorted(json.loads(line)["value"] for file in folder.glob("*.jsonl") for line in file.open())


def run_until(world: KinesisWorld, folder: Path, count: int, change: Callable[[], None] = lambda: None) -> None:
    """Runs the job until `count` rows are visible and stops the job; the next call continues."""
    flow = Dataflow("copy")
    options = {"every": datetime.timedelta(milliseconds=20), "discover": datetime.timedelta(milliseconds=50)}
    source = flow.source("clicks", world.source(value="string", metadata=(), **options))
    source.select({"value": "cast(value as bigint)"}).sink("out", JsonlSink(str(folder / "out")))
    with flow.start_local(parallelism=2, checkpoint_interval=0.05, checkpoints=str(folder / "checkpoints")) as job:
        change()
        while len(written(folder / "out")) < count:
            assert not job.done, job
            time.sleep(0.02)
        job.stop()
        job.wait(120)


@pytest.mark.slow
def test_a_stream_is_resharded_while_a_job_reads_it_and_while_it_is_away(make_kinesis: Make, tmp_path: Path) -> None:
    world = make_kinesis(2)
    world.put(numbers(0, 200))

    def reshard() -> None:
        world.split("shardId-000000000000")
        world.put(numbers(200, 500))

    run_until(world, tmp_path, 500, reshard)
    world.split("shardId-000000000001")
    world.put(numbers(500, 700))
    run_until(world, tmp_path, 700)
    assert written(tmp_path / "out") == list(range(700)), "none lost, none twice, also of shards that ended"


@pytest.mark.slow
def test_a_stream_is_read_from_a_time_or_from_now_on(make_kinesis: Make) -> None:
    world = make_kinesis()
    world.put(numbers(0, 10))
    time.sleep(0.01)
    between = datetime.datetime.now(datetime.timezone.utc)
    time.sleep(0.01)
    world.put(numbers(10, 15))
    later = reader_of(world, value="string", start=between, until="latest")
    assert [int(row["value"]) for row in taken(later, 100)] == list(range(10, 15))
    stream = world.stream(value="string", start="latest")
    (split,) = stream.splits(1)
    time.sleep(0.01)
    world.put(numbers(15, 18))
    for _ in range(2):  # the split contains the start time, so every reader begins there
        reader = stream.reader(split)
        assert [int(row["value"]) for row in taken(reader, 3)] == [15, 16, 17]
        reader.close()


@pytest.mark.parametrize("minutes", [-5, 0, 5])
def test_the_start_is_now_by_the_clock_of_the_service(
    make_kinesis: Make, monkeypatch: pytest.MonkeyPatch, minutes: int
) -> None:
    world = make_kinesis()
    world.put(numbers(0, 3))
    wrong = SimpleNamespace(time_ns=lambda: time.time_ns() + minutes * 60_000_000_000)
    monkeypatch.setattr(kinesis_client, "time", wrong)
    reader = reader_of(world, value="string", until="latest")
    assert [row["value"] for row in taken(reader, 100)] == ["0", "1", "2"]
    before_ms = time.time_ns() // 1_000_000
    (split,) = world.stream(start="latest").splits(1)
    from_ms = SPLIT.decode(split.payload).from_ms
    assert from_ms is not None
    assert before_ms // 1000 * 1000 <= from_ms <= time.time_ns() // 1_000_000


@pytest.mark.slow
def test_no_record_before_the_start_is_read_if_boto3_asks_for_whole_seconds(
    make_kinesis: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    from botocore.serialize import Serializer

    monkeypatch.setattr(Serializer, "_timestamp_unixtimestamp", lambda self, value: int(value.timestamp()))
    world = make_kinesis()
    until(lambda: time.time() % 1 < 0.5, "all records arrive in the same second")
    world.put(numbers(0, 4))
    time.sleep(0.01)
    between = datetime.datetime.now(datetime.timezone.utc)
    time.sleep(0.01)
    world.put(numbers(4, 7))
    reader = reader_of(world, value="string", start=between, until="latest")
    assert [row["value"] for row in taken(reader, 100)] == ["4", "5", "6"]


@pytest.mark.slow
@pytest.mark.parametrize("code", ["ExpiredIteratorException", "ProvisionedThroughputExceededException", "Internal"])
def test_what_passes_costs_no_row(make_kinesis: Make, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """An expired iterator, a limit, a server error: after the first rows, and again."""
    monkeypatch.setattr(shard_reader, "_FIRST_WAIT_S", 0.01)
    world = make_kinesis()
    world.put(numbers(0, 5))
    reader = reader_of(world, value="string", every=datetime.timedelta(milliseconds=10))
    rows = taken(reader, 5)
    world.faults += [refusal(code), None, refusal(code), refusal(code)]
    world.put(numbers(5, 9))
    rows += taken(reader, 4)
    reader.close()
    assert [int(row["value"]) for row in rows] == list(range(9))
    while world.faults:
        world.faults.popleft()


@pytest.mark.slow
def test_a_server_that_stays_away_is_unavailable_and_a_limit_is_waited_for(
    make_kinesis: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_reader, "GIVE_UP_S", 0.02)
    monkeypatch.setattr(shard_reader, "_FIRST_WAIT_S", 0.01)
    world = make_kinesis()
    world.put(numbers(0, 1))
    world.faults += [refusal("LimitExceededException")] * 5
    reader = reader_of(world, value="string")
    assert len(taken(reader, 1)) == 1, "for longer than an outage may last"
    reader.close()
    world.faults += [refusal("InternalFailure")] * 100
    reader = reader_of(world, value="string")
    with pytest.raises(Unavailable, match="did not answer"):
        taken(reader, 1)
    world.faults.clear()


@pytest.mark.parametrize(
    ("code", "told"),
    [("AccessDeniedException", "kinesis:GetRecords|GetRecords"), ("ResourceNotFoundException", "correct stream=")],
)
def test_what_a_person_must_change_ends_the_job(make_kinesis: Make, code: str, told: str) -> None:
    world = make_kinesis()
    world.faults.append(refusal(code))
    reader: SplitReader = reader_of(world, value="string")
    with pytest.raises(InvalidJob, match=told):
        taken(reader, 1)  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_record_that_cannot_be_decoded_is_named(make_kinesis: Make) -> None:
    world = make_kinesis()
    world.put([b'{"n": 1}', b'{"n": "two"}', b'{"n": 3}'])
    reader = reader_of(world, value="json", schema={"n": int})
    with pytest.raises(InvalidJob, match=r"shard 'shardId-000000000000': the record with sequence number 2 cannot be"):
        taken(reader, 3)


@pytest.mark.parametrize(("hours_ago", "told"), [(23, ""), (25, "retains 24 hours: records behind that may be gone")])
def test_a_job_that_was_away_for_longer_than_the_retention_does_not_go_on(
    make_kinesis: Make, hours_ago: int, told: str
) -> None:
    world = make_kinesis()
    world.put(numbers(0, 2))
    stream = world.stream(value="string")
    (split,) = stream.splits(1)
    complete_ms = time.time_ns() // 1_000_000 - hours_ago * HOUR_MS
    position = json.dumps({"after": "1", "complete_ms": complete_ms}).encode()
    reader = stream.reader(split)
    reader.seek(position)
    if told:
        with pytest.raises(InvalidJob, match=told):
            taken(reader, 1)
    else:
        assert [row["value"] for row in taken(reader, 1)] == ["1"]
    reader.close()
    assert len(stream.no_longer_there({split.id: position, "shardId-9": None})) == bool(told)


@pytest.mark.parametrize(
    ("hours_behind", "overtaken"),
    [((23, 25), True), ((25, 25), False), ((0, 23), False)],
    ids=["overtaken", "not-yet-read", "slow"],
)
def test_records_that_expire_before_they_are_read_end_a_job_that_runs(
    make_kinesis: Make, hours_behind: tuple[int, int], overtaken: bool
) -> None:
    """Kinesis passes over such records. A start near the oldest record is no loss."""
    world = make_kinesis()
    world.put(numbers(0, 3))
    world.behind_ms += [hours * HOUR_MS for hours in hours_behind]
    reader = reader_of(world, value="string", every=datetime.timedelta(milliseconds=5))
    assert len(taken(reader, 3)) == 3
    if overtaken:
        with pytest.raises(InvalidJob, match=r"retains 24 hours: records behind that may be gone\..* parallelism="):
            taken(reader, 1)
    else:
        until(lambda: not world.behind_ms, "both answers came")
        world.put(numbers(3, 4))
        assert [row["value"] for row in taken(reader, 1)] == ["3"]
    reader.close()


@pytest.mark.slow
def test_a_position_tells_until_when_nothing_is_missing(make_kinesis: Make) -> None:
    """The time advances while no row arrives, so a silent shard differs from an unread shard."""
    world = make_kinesis()
    world.put(numbers(0, 4))
    reader = reader_of(world, value="string", every=datetime.timedelta(milliseconds=5))
    begun_ms = time.time_ns() // 1_000_000
    taken(reader, 2)
    assert json.loads(reader.position())["complete_ms"] is None, "two rows of the answer are still to come"
    taken(reader, 2)
    assert json.loads(reader.position())["complete_ms"] >= begun_ms - 60_000
    reader.seek(json.dumps({"after": "4", "complete_ms": None}).encode())
    while json.loads(reader.position())["complete_ms"] is None:
        assert reader.poll(10, time.time_ns()) is None
    reader.close()


def test_what_a_position_holds_is_read_by_whoever_comes_later() -> None:
    assert POSITION.decode(b'{"after": "7", "complete_ms": 5}') == KinesisPosition("7", 5)
    assert POSITION.decode(b"{}") == KinesisPosition(None, None)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"stream": " "}, "give the name of a stream"),
        ({"endpoint": "http://me:secret@host"}, "must not carry credentials"),
        ({"until": "now"}, 'use "latest"'),
        ({"value": "avro"}, 'use "bytes", "string" or "json"'),
        ({"value": "json"}, "needs it: the columns of the JSON"),
        ({"schema": {"n": int}}, 'goes with value="json"'),
        ({"metadata": ["offset"]}, "choose from partition_key, shard"),
        ({"value": "json", "schema": {"shard": str}}, "two columns 'shard'"),
        ({"start": "yesterday"}, 'use "earliest"'),
        ({"start": datetime.datetime(2026, 1, 1)}, "no time zone"),
        ({"every": -1}, "every of source 'clicks'"),
    ],
)
def test_wrong_settings_are_refused_when_the_flow_is_written(options: dict[str, Any], told: str) -> None:
    given = {"stream": "clicks", **options}
    with pytest.raises(InvalidJob, match=told):
        Dataflow("f").source("clicks", KinesisSource(given.pop("stream"), **given))


def test_a_stream_that_does_not_exist_is_said_before_the_job_starts(make_kinesis: Make) -> None:
    world = make_kinesis()
    missing = KinesisSource("missing", region="us-east-1", endpoint=world.endpoint).named("clicks")
    with pytest.raises(InvalidJob, match="stream 'missing': it, or a shard of it, does not exist"):
        missing.splits(1)


@pytest.mark.parametrize("sent", [0, 9])
def test_an_answer_whose_connection_ends_early_is_requested_again(monkeypatch: pytest.MonkeyPatch, sent: int) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    answer = '{"Records": [], "NextShardIterator": "next", "MillisBehindLatest": 0}'
    with contextlib.closing(Script()) as script:
        client = KinesisClient("clicks", "us-east-1", script.endpoint, "source 'clicks'")
        script.answers = [(200, answer, sent), (200, answer)]
        with pytest.raises(Unavailable, match="asked again"):
            client.records("first")
        assert client.records("first").iterator == "next"
