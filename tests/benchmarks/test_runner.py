"""The harness around an engine: figures of a process tree, and one short real run."""

import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import machine
from benchmarks.counted_s3 import counted_s3
from benchmarks.runner import run
from benchmarks.spec import RunSpec
from benchmarks.usage import Usage

BURN = "import time\nwhile time.process_time() < 0.4: pass\nprint('burnt', flush=True)\n"
PARENT = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {BURN + 'input()'!r}])\n"


@pytest.mark.parametrize("program", ["benchmarks", "benchmarks.slots"])
def test_the_command_told_is_the_one_that_was_given(program: str, tmp_path: Path) -> None:
    package = tmp_path / "benchmarks"  # of this name, without slow work
    package.mkdir()
    for name in ("__init__.py", "__main__.py", "slots.py"):
        (package / name).write_text("" if name == "__init__.py" else "print(__import__('machine').command())")
    shutil.copy(machine.__file__, tmp_path / "machine.py")
    given = ["-m", program, "--rates", "1000", "--attach", "perf stat -p {0}"]
    told = subprocess.run([sys.executable, *given], capture_output=True, text=True, cwd=tmp_path, check=True).stdout
    assert shlex.split(told) == ["python", *given]


@pytest.mark.slow
def test_cpu_time_of_grandchildren_counts_also_when_they_have_ended() -> None:
    program = [sys.executable, "-c", PARENT]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        with Usage(process.pid) as usage:
            began_ns = time.time_ns()
            usage.look()
            assert process.stdout.readline() == "burnt\n"
            usage.look()
            process.stdin.close()
            process.wait()
            usage.look()
        assert usage.cpu_between(began_ns, time.time_ns()) > 0.3
        assert usage.peak_mb() > 5


@pytest.mark.slow
def test_the_counted_store_counts_every_request_but_the_question() -> None:
    import boto3

    with counted_s3() as store:
        before = store.requests()
        client = boto3.client(
            "s3",
            endpoint_url=store.endpoint,
            aws_access_key_id="test",
            aws_secret_access_key="test",
            region_name="us-east-1",
        )
        client.put_object(Bucket="barrier-runtime", Key="a", Body=b"1")
        client.get_object(Bucket="barrier-runtime", Key="a")
        assert store.requests() == before + 2
        assert store.requests() == before + 2


@pytest.mark.spark
@pytest.mark.parametrize("workload", ["keyed-count", "wide-state"])
def test_a_short_run_has_every_figure(workload: str, tmp_path: Path) -> None:
    spec = RunSpec(
        engine="ours",
        workload=workload,
        measure="latency",
        source="generator",
        sink="measure",
        rate=500.0,
        keys=1_000,
        preload=1_000 if workload == "wide-state" else 0,
        interval_ms=500,
        warm_up_s=1.0,
        seconds=3.0,
        folder=str(tmp_path / "run"),
    )
    result = run(spec, None)
    assert result.error is None
    assert result.processed is not None
    assert result.processed.count == pytest.approx(1_500, abs=3)
    assert result.processed.p50 <= result.processed.p99 <= result.processed.max
    assert result.checkpoints is not None
    assert result.checkpoints.count > 0
    assert result.checkpoints.bytes
    assert result.peak_mb
    assert result.cpu_s
    assert result.cores == pytest.approx(result.cpu_s / 3.0, abs=0.01)
    assert result.timeline
    assert result.version


@pytest.mark.spark
def test_an_engine_that_breaks_is_a_result_with_its_last_words(tmp_path: Path) -> None:
    spec = RunSpec(
        engine="ours",
        workload="keyed-count",
        measure="throughput",
        source="parquet",
        sink="discard",
        rows=10,
        input=str(tmp_path / "nothing"),
        folder=str(tmp_path / "run"),
    )
    result = run(spec, None)
    assert result.error is not None
    assert "there is no file or folder" in result.error


def test_run_without_a_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run would empty the current directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kept").touch()
    spec = RunSpec(engine="ours", workload="rtm-a", measure="latency", source="generator", sink="discard")
    with pytest.raises(ValueError, match="give RunSpec"):
        run(spec, None)
    assert (tmp_path / "kept").exists()
