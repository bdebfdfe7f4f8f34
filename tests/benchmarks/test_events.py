"""The generators: every row a function of its number, whoever asks for it, in whatever chunks."""

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


def test_nexmark_has_its_proportions_and_refers_to_what_exists() -> None:
    numbers = np.arange(50_000)
    table = pa.Table.from_batches([nexmark.events(numbers, numbers * 100_000)])
    kinds = np.bincount(table["kind"].to_numpy())
    assert kinds.tolist() == [1_000, 3_000, 46_000]
    people = set(table.filter(pc.field("kind") == nexmark.PERSON)["id"].to_pylist())
    auctions = table.filter(pc.field("kind") == nexmark.AUCTION)
    bids = table.filter(pc.field("kind") == nexmark.BID)
    assert set(auctions["seller"].to_pylist()) <= people
    assert set(bids["bidder"].to_pylist()) <= people
    assert set(bids["auction"].to_pylist()) <= set(auctions["id"].to_pylist())
    assert len(set(auctions["id"].to_pylist())) == 3_000
    assert table["price"].null_count == 4_000


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
