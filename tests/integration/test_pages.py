"""Pages of a job on Spark as a reader follows them: programs as files, commands in a shell, with the places put in."""

import datetime
import os
import re
import shlex
import subprocess
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from harness import visible_files

from barrier_runtime.connectors.files.sink.commit_log import committed_files
from barrier_runtime.coordinator.client.client import CoordinatorClient
from barrier_runtime.state.errors import Unavailable
from examples.servers import PostgresServer, postgres_server
from examples.servers.base import free_port
from tests.integration.ends.batch_counts import JDBC_DRIVER
from tests.server_fixtures import server_fixture
from tests.test_documents import PROGRAM, ROOT
from tests.waiting import until

pytestmark = pytest.mark.spark

postgres = server_fixture(postgres_server, scope="function")
COMMANDS = re.compile(r"```\n((?:\(umask|barrier-runtime ).*?)```", re.DOTALL)
ENVIRONMENT = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def placed(text: str, places: Mapping[str, str]) -> str:
    for printed, real in places.items():
        assert printed in text, f"the page does not have {printed}"
        text = text.replace(printed, real)
    return text


def programs_of(page: str) -> list[str]:
    return [code for code, _ in PROGRAM.findall((ROOT / "docs" / page).read_text(encoding="utf-8"))]


def commands_of(page: str) -> list[list[str]]:
    """Lines of each block of commands, without optional parts and comments."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return [[re.sub(r"\s\[.*?\]|\s#.*", "", line) for line in block.splitlines()] for block in COMMANDS.findall(text)]


def shell(line: str, folder: Path, *codes: int) -> str:
    done = subprocess.run(
        line, shell=True, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode in (codes or (0,)), f"{line}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.long(70)
def test_writing_a_flow(tmp_path: Path) -> None:
    """The program by Python, then the same file by the command, which finds the job done; `explain` before both. Then
    the lines of operating.md that read a row of the job again.
    """
    begin = datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone.utc)
    at = [begin + datetime.timedelta(seconds=10 * number) for number in range(60)]
    table = pa.table({"sensor": ["s-17"] * 60, "at": pa.array(at, pa.timestamp("us", "UTC")), "ms": [150.0] * 60})
    (tmp_path / "readings").mkdir()
    pq.write_table(table, tmp_path / "readings" / "one.parquet")
    program, _limited = programs_of("writing-a-flow.md")
    places = {"s3://lake": str(tmp_path), "spark://…:7077": "local[2]", "parallelism=8": "parallelism=2"}
    (tmp_path / "app.py").write_text(placed(program, places), encoding="utf-8")
    ((run, explain),) = commands_of("writing-a-flow.md")
    assert "per-minute" in shell(explain, tmp_path)
    shell(f"{shlex.quote(sys.executable)} app.py", tmp_path)
    minutes = pa.concat_tables(
        pq.read_table(url) for url in committed_files(str(tmp_path / "minutes"), "response-times")
    )
    assert (minutes.num_rows, set(minutes["mean_ms"].to_pylist())) == (10, {150.0})
    alarms = "".join(path.read_text() for path in visible_files(tmp_path / "alarms"))
    assert alarms.count("s-17") == 8
    assert "finished: 60 records read" in shell(
        placed(run, {"/tmp/checkpoints": str(tmp_path / "checkpoints")}), tmp_path
    )
    assert "".join(path.read_text() for path in visible_files(tmp_path / "alarms")) == alarms
    (replay, debugged) = commands_of("operating.md")[-1]
    again = {"s3://jobs": str(tmp_path / "checkpoints"), "--from 41": "--from 0"}
    assert shell(placed(replay, again), tmp_path).count("emitted: ") == 8
    stopped = shell(f"yes continue | head -20 | {placed(debugged, again)}", tmp_path)
    assert (stopped.count("(Pdb) "), stopped.count("emitted: ")) == (10, 8)


def test_operating(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon, a program that uses it, each command for the program's job, and `fsck` of the files left."""
    listen, http = free_port(), free_port()
    places = {"127.0.0.1:7070": f"127.0.0.1:{http}"}
    storage = str(tmp_path / "checkpoints")
    (tmp_path / "temporary").mkdir()
    monkeypatch.setitem(ENVIRONMENT, "TMPDIR", str(tmp_path / "temporary"))  # so commands find this daemon alone
    (token, daemon), commands, (fsck,), _ = commands_of("operating.md")
    shell(token, tmp_path)
    (tmp_path / "app.py").write_text(
        "from barrier_runtime import Dataflow, JsonlSink, count\n\n"
        'flow = Dataflow("job")\n'
        'numbers = flow.rate("numbers", 100, keys=10).key_by("key").aggregate("count", n=count())\n'
        f'numbers.sink("out", JsonlSink({str(tmp_path / "out")!r}))\n'
    )
    (program,) = programs_of("operating.md")
    program = placed(program, {**places, "/tmp/checkpoints": storage, "flow.run(": 'flow.run(master="local[5]", '})
    (tmp_path / "on_daemon.py").write_text(program, encoding="utf-8")
    line = placed(daemon, {**places, "127.0.0.1:7071": f"127.0.0.1:{listen}", "/tmp/checkpoints": storage})
    running = []

    def started(command: list[str], log: str) -> subprocess.Popen[bytes]:
        with (tmp_path / log).open("wb") as out:
            running.append(subprocess.Popen(command, cwd=tmp_path, env=ENVIRONMENT, stdout=out, stderr=out))
        return running[-1]

    try:
        started(shlex.split(line), "daemon.log")
        client = CoordinatorClient(f"http://127.0.0.1:{http}", (tmp_path / "daemon.token").read_text().strip())
        until(lambda: answers(client), "the daemon answered")
        job = started([sys.executable, "on_daemon.py"], "job.log")
        until(
            lambda: job.poll() is not None or completed(client) > 1,
            "the job completed checkpoints",
        )
        assert job.poll() is None, (tmp_path / "job.log").read_text()
        assert "\njob " in shell(commands[0], tmp_path)
        by_name = {each.split()[1]: each for each in commands[1:]}
        assert sorted(by_name) == ["checkpoint", "rescale", "savepoint", "status", "stop"]
        for name in ("status", "checkpoint", "savepoint", "rescale", "stop"):  # the last command ends the job
            shell(by_name[name].replace("URL", str(tmp_path / "savepoint")), tmp_path)
        assert job.wait(240) == 0, (tmp_path / "job.log").read_text()
    finally:
        for process in reversed(running):
            process.terminate()
            process.wait(60)
    shell(placed(fsck, {"s3://lake/checkpoints": storage}), tmp_path, 0, 1)  # 1: a rescale may leave an orphan


def answers(client: CoordinatorClient) -> bool:
    try:
        return client.health().pid > 0
    except Unavailable:
        return False


def completed(client: CoordinatorClient) -> int:
    try:
        return max((client.status(job.job).checkpoints.completed for job in client.jobs()), default=0)
    except Unavailable:  # for a moment, on a busy machine
        return 0


def program_of(page: str, name: str) -> str:
    (code,) = [each for each in programs_of(page) if f"def {name}(" in each]
    return code


@pytest.mark.long(35)
def test_for_each_batch_by_jdbc(postgres: PostgresServer, tmp_path: Path) -> None:
    """The page's function, called by a job on Spark; the page's other programs are run by the tests of all pages."""
    name = f"orders_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(postgres.url) as connection:
        connection.execute(f"create table {name} (value bigint)")
        connection.execute("create table taken (application text primary key, number bigint)")
    write = program_of("for-each-batch.md", "write_jdbc")
    host = postgres.url.partition("://")[2]
    places = {
        "jdbc:postgresql://host/db": f"jdbc:postgresql://{host.rpartition('@')[2]}",
        "postgresql://host/db": postgres.url,
        '"driver": "org.postgresql.Driver"': f'"driver": "org.postgresql.Driver", "user": {host.partition("@")[0]!r}',
        "insert into orders": f"insert into {name}",
    }
    (tmp_path / "app.py").write_text(
        "from barrier_runtime import Dataflow\n\n"
        f"{placed(write, places)}\n"
        'flow = Dataflow("orders")\n'
        'flow.rate("numbers", 1000, 2000).select(["value"]).for_each_batch(write_jdbc, name="out")\n'
        f'flow.run(master="local[3]", parallelism=1, checkpoints={str(tmp_path / "checkpoints")!r}, '
        f'spark_conf={{"spark.jars.packages": {JDBC_DRIVER!r}}})\n'
    )
    shell(f"{shlex.quote(sys.executable)} app.py", tmp_path)
    with psycopg.connect(postgres.url) as connection:
        assert connection.execute(f"select count(*), count(distinct value) from {name}").fetchone() == (2000, 2000)
