"""J6, J7 with all processes: driver, coordinator, slots, S3. Secrets are planted or made, the job runs, a slot is
killed, and then all printed, logged, sent, stored and leftover data is searched for the secrets.
"""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CANARY = "CanaryThatMustNotSing"

PROGRAM = """
    import json, os, signal, stat, sys, time
    from pathlib import Path
    import msgspec
    from barrier_runtime import Dataflow, JsonlSink, count
    from examples.servers import s3_server

    folder, told, stored = map(Path, sys.argv[1:4])
    CANARY = os.environ.pop("CANARY")

    def until(condition):
        while not (found := condition()):
            time.sleep(0.05)
        return found

    with s3_server() as s3:
        place = s3.url
        os.environ.update(AWS_SECRET_ACCESS_KEY=CANARY, AWS_SESSION_TOKEN="session" + CANARY)
        flow = Dataflow("planted")
        numbers = flow.rate("numbers", 3_000, keys=50)
        numbers.key_by("key").aggregate("count", n=count()).sink("out", JsonlSink(f"{place}/out"))
        print(flow.explain())
        events = folder / "events"
        events.mkdir()
        options = dict(master="local[2]", parallelism=2, checkpoints=f"{place}/checkpoints", checkpoint_interval=0.3)
        options["spark_conf"] = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": events.as_uri(),
                                 "spark.ui.enabled": "true", "spark.ui.port": "0"}
        with flow.start(**options) as handle:
            secrets = [handle._coordinator.submitted.secret, handle._coordinator._embedded._token, CANARY]
            told.write_text(json.dumps(secrets))
            print(repr(handle), vars(handle), repr(handle._coordinator), vars(handle._coordinator))
            completed = until(lambda: handle.status().checkpoints.completed)
            private = [entry for entry in folder.iterdir() if entry.name.startswith("barrier-runtime-")]
            assert any("coordinator" in entry.name for entry in private), private
            assert any(entry.name == f"barrier-runtime-{os.getuid()}" for entry in private), private
            print("OURS", [stat.filemode(entry.lstat().st_mode) for entry in private])
            os.kill(handle.status().slots[0].pid, signal.SIGKILL)
            until(lambda: handle.status().generations > 1 and handle.status().checkpoints.completed > completed + 1)
            print(msgspec.json.encode(handle.status()).decode(), handle.status())
            print("ASKED", handle._coordinator.client.slot_lines("planted", 1, "log"))
            print("ASKED", handle._coordinator.client.slot_lines("planted", 1, "stacks"))
            for log in folder.glob("barrier-runtime-coordinator-*/coordinator.log"):
                print(log.read_text())
            print(handle._carrier._spark.sparkContext.getConf().toDebugString())
            handle.stop("checkpoint")
            print(handle.wait())
        import boto3
        client = boto3.client("s3")
        stored.mkdir()
        for number, item in enumerate(client.list_objects_v2(Bucket="barrier-runtime")["Contents"]):
            body = client.get_object(Bucket="barrier-runtime", Key=item["Key"])["Body"].read()
            (stored / str(number)).write_bytes(item["Key"].encode() + b"\\n" + body)
"""


@pytest.mark.spark
def test_no_secret_of_a_spark_job_comes_out_anywhere(tmp_path: Path) -> None:
    """J6, J7: the bucket's key, the daemon's token, the job's secret."""
    folder, told, stored = tmp_path / "temporary", tmp_path / "told.json", tmp_path / "stored"
    folder.mkdir()
    environment = {**os.environ, "CANARY": CANARY, "TMPDIR": str(folder), "SPARK_LOCAL_DIRS": str(folder)}
    environment["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), str(folder), str(told), str(stored)],
        capture_output=True, text=True, timeout=280, check=False, cwd=tmp_path, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-5_000:]
    assert "['drwx------', 'drwx------']" in done.stdout
    assert "ASKED SlotLines(slot=1, lines=('MainThread: " in done.stdout
    secrets = json.loads(told.read_text())
    assert len(secrets) == len(set(secrets)) == 3
    events = [path for path in (folder / "events").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in events) > 10_000, "an event log was searched"
    assert len(list(stored.iterdir())) > 5, "log, manifests and output were searched"
    searched = {"stdout": done.stdout.encode(), "stderr": done.stderr.encode()}
    searched |= {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    searched |= {str(path): path.read_bytes() for path in stored.iterdir()}
    for where, content in searched.items():
        for number, secret in enumerate(secrets):
            assert secret.encode() not in content, f"secret {number} is in {where}"
    left = [path.name for path in folder.iterdir() if path.name.startswith("barrier-runtime-coordinator-")]
    assert left == [], "the token's folder is gone"
