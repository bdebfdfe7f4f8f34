"""The generators: every row a function of the row's number, for every reader and all chunk sizes."""

import json
import subprocess
import time
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from benchmarks import events, nexmark
from benchmarks.engines.java_build import HERE
from benchmarks.inputs import file_rows, with_input
from benchmarks.paced_source import PacedSource
from benchmarks.spec import RunSpec
from benchmarks.visible import seen_at
from examples.servers.base import find_program
from tests.polled_rows import polled_rows


def rows(first: int, last: int, keys: int = 100) -> list[dict[str, int]]:
    numbers = np.arange(first, last)
    return events.events(numbers, numbers * 1_000_000, keys).to_pylist()


def test_the_mixer_is_splitmix64() -> None:
    assert [int(value) for value in events.mixed(np.array([0, 1, -1]))] == [
        0xE220A8397B1DCDAF,
        0x910A2DEC89025CC1,
        0xE4D971771B652C20,
    ]


def test_rows_do_not_depend_on_the_pieces_they_are_made_in() -> None:
    assert rows(0, 1000) == rows(0, 333) + rows(333, 1000)


def test_keys_and_values_are_spread_evenly_over_their_ranges() -> None:
    made = events.events(np.arange(100_000), np.arange(100_000), 50)
    counts = np.bincount(made.column("key").to_numpy(), minlength=50)
    assert len(counts) == 50
    assert counts.min() > 1_700
    assert counts.max() < 2_300
    values = made.column("value").to_numpy()
    assert (values.min(), values.max()) == (0, 999)


def test_json_has_the_same_columns_and_numbers() -> None:
    batch = events.events(np.arange(5), np.arange(5) + 1_700_000_000_000_000_000, 10)
    assert [json.loads(line) for line in events.as_json(batch)] == batch.to_pylist()


@pytest.mark.slow
@pytest.mark.parametrize("workload", ["tumbling", "q1"])
def test_a_small_input_is_the_beginning_of_a_large_one_and_each_file_is_made_once(
    workload: str, tmp_path: Path
) -> None:
    spec = RunSpec(workload=workload, engine="ours", measure="throughput", source="parquet", sink="discard", rows=8_000)
    assert file_rows(spec) == 1_000
    assert file_rows(msgspec.structs.replace(spec, rows=10**9)) == (500_000 if workload == "q1" else 1_000_000)
    large = with_input(spec, tmp_path, 1_000)
    made = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.parquet")}
    small = with_input(msgspec.structs.replace(spec, rows=1_500), tmp_path, 1_000)
    assert (small.rows, large.rows) == (2_000, 8_000)
    rows = pq.read_table(large.input)
    assert pc.count_distinct(rows["emitted"]).as_py() == rows.num_rows == 8_000
    assert pq.read_table(small.input).equals(rows.slice(0, 2_000))
    assert {path: path.stat().st_mtime_ns for path in made} == made


def test_the_paced_source_gives_what_is_due_and_no_more() -> None:
    source = PacedSource(1_000, 10)
    splits = source.splits(2)
    now_ns = time.time_ns()
    found = []
    for split in splits:
        reader = source.reader(split)
        reader.poll(1, now_ns)
        polled = reader.poll(10_000, now_ns + 1_000_000_000)
        assert polled is not None
        assert reader.poll(10_000, now_ns + 1_000_000_000) is None
        assert polled.emit_ns == polled_rows(polled).column("emitted")[0].as_py()
        found.append(polled_rows(polled))
    emitted = np.concatenate([rows.column("emitted").to_numpy() for rows in found])
    assert emitted.max() <= now_ns + 1_000_000_000
    assert 995 <= len(emitted) <= 1_001


def test_a_paced_reader_that_is_sought_goes_on_with_the_next_row() -> None:
    source = PacedSource(1_000, 10, preload=20)
    reader = source.reader(source.splits(1)[0])
    now_ns = time.time_ns()
    loaded = reader.poll(15, now_ns)
    assert loaded is not None
    other = source.reader(source.splits(1)[0])
    other.seek(reader.position())
    rest = other.poll(100, now_ns)
    assert rest is not None
    keys = polled_rows(loaded).column("key").to_pylist() + polled_rows(rest).column("key").to_pylist()
    assert keys == list(range(20))
    reader.seek(other.position())
    reader.poll(5, now_ns)
    other.seek(reader.position())
    first, second = (each.poll(50, now_ns + 10**9) for each in (reader, other))
    assert first is not None
    assert second is not None
    assert polled_rows(first).equals(polled_rows(second))


def test_few_rows_of_a_paced_reader_are_those_of_many() -> None:
    """Rows of small batches are computed ahead, hundreds at once; a large batch is not, and skips the rows computed
    ahead.
    """
    source = PacedSource(1_000, 10)
    now_ns = time.time_ns()
    by_few, by_many = (source.reader(source.splits(3)[1]) for _ in range(2))
    for reader in (by_few, by_many):
        reader.poll(0, now_ns)
    few = [by_few.poll(most, now_ns + 10**10) for most in (*[100] * 7, 1_000, *[100] * 9)]
    many = by_many.poll(2_600, now_ns + 10**10)
    assert many is not None
    one_by_one = pa.Table.from_batches([polled_rows(each) for each in few if each is not None])
    assert one_by_one.to_pydict() == polled_rows(many).to_pydict()


@pytest.fixture(scope="module")
def auctions() -> pa.Table:
    return pa.Table.from_batches([nexmark.bounded(0, 100_000)])


def of_kind(table: pa.Table, kind: int) -> pa.Table:
    return table.filter(pc.field("kind") == kind)


@pytest.mark.slow
def test_nexmark_has_its_proportions_and_refers_to_what_is_in_flight(auctions: pa.Table) -> None:
    assert np.bincount(auctions["kind"].to_numpy()).tolist() == [2_000, 6_000, 92_000]
    people, sold, bids = (of_kind(auctions, kind) for kind in (nexmark.PERSON, nexmark.AUCTION, nexmark.BID))
    assert people["id"].to_pylist() == list(range(1_000, 3_000))
    assert sold["id"].to_pylist() == list(range(1_000, 7_000))
    for column, ids in (("bidder", people), ("auction", sold)):
        ahead = set(bids[column].to_pylist()) - set(ids["id"].to_pylist())
        assert len(ahead) <= 10, "a few are referred to before they come, the last ones after the end"
    assert set(sold["seller"].to_pylist()) - set(people["id"].to_pylist()) <= set(range(3_000, 3_010))


@pytest.mark.slow
def test_nexmark_has_the_columns_of_each_kind_and_nulls_for_the_others(auctions: pa.Table) -> None:
    common = {"kind", "at", "emitted", "extra"}
    own = {
        nexmark.PERSON: {"id", "name", "email_address", "credit_card", "city", "state"},
        nexmark.AUCTION: {"id", "item_name", "description", "initial_bid", "reserve", "expires", "seller", "category"},
        nexmark.BID: {"auction", "bidder", "price", "channel", "url"},
    }
    assert common.union(*own.values()) == set(auctions.column_names)
    for kind, columns in own.items():
        rows = of_kind(auctions, kind)
        absent = {name for name in rows.column_names if rows[name].null_count}
        assert absent == set(auctions.column_names) - columns - common
        assert all(rows[name].null_count == len(rows) for name in absent)


@pytest.mark.parametrize(("kind", "numbers", "size"), [(0, 8, 200), (1, 48, 500), (2, 32, 100)])
def test_events_of_nexmark_have_its_sizes_within_two_percent(
    auctions: pa.Table, kind: int, numbers: int, size: int
) -> None:
    """Bytes as the benchmark counts them: numbers take eight each, and of a bid channel and url are left out."""
    rows = of_kind(auctions, kind)
    texts = [name for name in rows.column_names if pa.types.is_string(rows.schema.field(name).type)]
    counted = [name for name in texts if name not in ("channel", "url") and rows[name].null_count == 0]
    sizes = numbers + sum(pc.binary_length(rows[name]).to_numpy() for name in counted)
    assert abs(sizes.mean() - size) < 0.02 * size
    lacking = size - sizes + pc.binary_length(rows["extra"]).to_numpy()  # filled by `extra`
    lengths = pc.binary_length(rows["extra"]).to_numpy()
    assert (np.abs(lengths - lacking) <= 0.2 * lacking + 1).all()


def test_some_of_nexmark_are_hot(auctions: pa.Table) -> None:
    bids, sold = of_kind(auctions, nexmark.BID), of_kind(auctions, nexmark.AUCTION)

    def share(rows: pa.Table, column: str, hot: int) -> float:
        return float((rows[column].to_numpy() % 100 == hot).mean())

    assert abs(share(bids, "auction", 0) - 0.5) < 0.02
    assert abs(share(bids, "bidder", 1) - 0.75) < 0.02
    assert abs(share(sold, "seller", 0) - 0.75) < 0.02
    four = pc.is_in(bids["channel"], value_set=pa.array(["Google", "Facebook", "Baidu", "Apple"]))
    assert abs(pc.mean(four).as_py() - 0.5) < 0.02
    assert abs(pc.mean(pc.match_substring(bids["url"], "channel_id=")).as_py() - 0.45) < 0.03
    assert set(pc.unique(pc.floor(pc.log10(pc.cast(bids["price"], pa.float64())))).to_pylist()) == {2, 3, 4, 5, 6, 7}


def test_events_of_nexmark_do_not_depend_on_the_pieces_they_are_made_in(auctions: pa.Table) -> None:
    pieces = [nexmark.bounded(begin, begin + 700) for begin in range(0, 2_100, 700)]
    assert pa.Table.from_batches(pieces).combine_chunks().equals(auctions.slice(0, 2_100).combine_chunks())


@pytest.mark.slow
def test_auctions_of_nexmark_are_open_for_as_long_as_events_are_in_flight() -> None:
    for pace in (500, 10_000):
        sold = of_kind(pa.Table.from_batches([nexmark.bounded(0, 50_000, pace)]), nexmark.AUCTION)
        open_ms = sold["expires"].to_numpy() - sold["at"].to_numpy()
        most_ms = nexmark.LONGEST_EVENTS * 1_000 // pace
        assert (open_ms.min(), open_ms.max()) >= (1, 0.9 * most_ms)
        assert open_ms.max() <= most_ms
        assert abs(open_ms.mean() - most_ms / 2) < 0.05 * most_ms


def test_rows_are_visible_when_the_end_has_first_passed_them() -> None:
    ends = [(100, 0), (200, 3), (300, 3), (400, 5)]
    assert seen_at(np.array([0, 2, 3, 4, 5]), ends).tolist() == [200, 200, 400, 400, -1]


def test_positions_are_json() -> None:
    source = PacedSource(10, 10)
    reader = source.reader(source.splits(1)[0])
    assert msgspec.json.decode(reader.position()) == {"row": 0, "start_ns": None, "loaded": 0}


MAIN = """
package bench;
public class Main {
    public static void main(String[] numbers) {
        for (String number : numbers) {
            long mixed = Events.mixed(Long.parseLong(number));
            System.out.println(Events.key(mixed, 1_000_000L) + " " + Events.value(mixed));
        }
    }
}
"""


@pytest.mark.spark
def test_the_java_sources_make_the_same_rows(tmp_path: Path) -> None:
    numbers = [0, 1, 2, 999_999, 123_456_789_012]
    (tmp_path / "Main.java").write_text(MAIN)
    sources = [str(HERE / "shared/Events.java"), str(tmp_path / "Main.java")]
    subprocess.run([find_program("javac", "openjdk-17-jdk-headless"), "-d", str(tmp_path), *sources], check=True)
    java = [find_program("java", "openjdk-17-jre-headless"), "-cp", str(tmp_path), "bench.Main", *map(str, numbers)]
    said = subprocess.run(java, check=True, capture_output=True, text=True).stdout.split()
    made = events.events(np.array(numbers), np.array(numbers), 1_000_000)
    assert list(map(int, said)) == [
        number
        for pair in zip(made.column("key").to_pylist(), made.column("value").to_pylist(), strict=True)
        for number in pair
    ]
