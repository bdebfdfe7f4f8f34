"""The benchmarks of our own parts, without engines: the output of each workload, with checkpoints in between."""

from pathlib import Path

import pytest

from benchmarks import batch_limit, encrypted_job, joins, operators, snapshots
from benchmarks.encrypted_job import Pair


@pytest.mark.slow
@pytest.mark.parametrize(("workload", "out"), [("window", 2_000), ("running", 40_000), ("process", 40_000)])
def test_each_keyed_workload_gives_its_rows(workload: str, out: int, tmp_path: Path, capsys) -> None:
    """1,000 keys in two windows of 20,000 rows each."""
    sizes = ["--rows", "40000", "--keys", "1000", "--per-window", "20000", "--batch", "2000"]
    assert operators.main([workload, *sizes, "--interval", "0", "--folder", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert f"40,000 rows in, {out:,} out" in printed
    assert "snapshots" in printed


def test_checkpoints_of_a_state_table_say_what_was_uploaded(tmp_path: Path, capsys) -> None:
    chosen = ["--keys", "4000", "--checkpoints", "3", "--every", "0.05", "--folder", str(tmp_path)]
    assert snapshots.main(chosen) == 0
    printed = capsys.readouterr().out
    assert "then 3 with 2,000 bytes changed each" in printed
    assert not any(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(("join", "least"), [("interval", 1), ("outer", 4_000), ("asof", 4_000)])
def test_each_join_gives_its_rows(join: str, least: int, tmp_path: Path, capsys) -> None:
    sizes = ["--rows", "4000", "--keys", "100", "--batch", "50"]
    assert joins.main([join, *sizes, "--folder", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    out = int(said.split(" rows in, ")[1].split(" out")[0].replace(",", ""))
    assert "8,000 rows in" in said
    assert out >= least if join != "asof" else out == least


@pytest.mark.slow
def test_batch_engines_give_the_same_groups_of_the_same_files(tmp_path: Path, capsys, monkeypatch) -> None:
    """The command ends with an error if counts or sums differ, or if a row is not counted. One engine runs in a
    separate process, as all do in the benchmark; the others run here, to avoid repeated imports.
    """
    in_a_process = batch_limit._in_a_process

    def run(engine: str, workload: str, folder: str, threads: int) -> batch_limit.Run:
        if engine == "pyarrow":  # pyarrow sets the thread count of the whole process
            return in_a_process(engine, workload, folder, threads)
        return batch_limit._timed(engine, workload, Path(folder), threads)

    monkeypatch.setattr(batch_limit, "_in_a_process", run)
    sizes = ["--rows", "8000", "--keys", "100", "--rounds", "1", "--workload", "tumbling"]
    assert batch_limit.main([*sizes, "--folder", str(tmp_path)]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| tumbling, 100")]
    assert [line.split(" | ")[1] for line in lines] == list(batch_limit.ENGINES)
    assert all(line.endswith("| 100 |") for line in lines)


def test_table_of_an_encrypted_job_has_the_pairs_differences() -> None:
    pairs = [
        Pair({"rows/s": 1_000, "p99, ms": 1.0}, {"rows/s": 950, "p99, ms": 1.1}),
        Pair({"rows/s": 2_000, "p99, ms": 3.0}, {"rows/s": 1_800, "p99, ms": 3.3}),
        Pair({"rows/s": 3_000, "p99, ms": 2.0}, {"rows/s": 2_940, "p99, ms": 1.9}),
    ]
    assert encrypted_job.lines(pairs) == [
        "| rows/s | 2,000 | 1,800 | -5.00 % (-10.00 to -2.00) |",
        "| p99, ms | 2 | 1.9 | +0.10 ms (-0.10 to +0.30) |",
    ]
