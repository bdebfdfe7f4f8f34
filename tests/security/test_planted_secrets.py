"""J6: secrets planted in the environment, in URLs and in settings must not leak: into output, logs, errors, stored
objects, or files left on disk.

The same with Spark, coordinator process, event log and status is in tests/integration/test_secrets_on_spark.py.
"""

import http.server
import json
import logging
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from barrier_runtime.api.dataflow import Dataflow
from barrier_runtime.connectors.files.sink.sink import CsvSink, JsonlSink, ParquetSink
from barrier_runtime.coordinator.client.client import CoordinatorClient
from barrier_runtime.coordinator.client.rest_token import Token
from barrier_runtime.coordinator.client.rest_types import SubmitReply
from barrier_runtime.coordinator.log.manifest import inline_data
from barrier_runtime.coordinator.log.records import Complete, decode_record
from barrier_runtime.coordinator.option_table import OPTIONS
from barrier_runtime.coordinator.option_types import SlotOptions
from barrier_runtime.coordinator.wire.handshake import Acceptor, Initiator
from barrier_runtime.launch.options import JobOptions, effective
from barrier_runtime.operators.aggregation.functions import count
from barrier_runtime.runtime.network.tcp import TcpDataPlane
from barrier_runtime.spark.task import SlotSettings
from barrier_runtime.state.errors import BarrierRuntimeError, InvalidJob
from barrier_runtime.state.store.open import open_store
from barrier_runtime.state.store.retrying import RetryBudget
from barrier_runtime.state.store.s3.by_boto3 import S3Store
from barrier_runtime.state.store.s3.by_obstore import ObstoreS3Store
from barrier_runtime.state.store.urls import shown, without_credentials

ROOT = Path(__file__).resolve().parents[2]
CANARY = "CanaryThatMustNotSing"
URLS_WITH_SECRETS = [
    f"s3://AKIA:{CANARY}@bucket/x",
    f"s3://{CANARY}@bucket/x",
    f"s3://AKIA:ab/{CANARY}/cd@bucket/x",  # half of the secret looks like a part of the path
    f"s3://AKIA:ab?{CANARY}@bucket",
    f"s3a://AKIA:{CANARY}@bucket/x",
    f"s3://bucket/x?endpoint=http://user:{CANARY}@127.0.0.1:1",
    f"https://user:{CANARY}@host/x",
    f"postgresql://user:{CANARY}@host/db",
    f"file://user:{CANARY}@host/x",
    f"s3://[{CANARY}@bucket/x",
]
URLS_WITH_SETTINGS = [
    f"s3://bucket/x?secret_key={CANARY}",
    f"s3://bucket/x?endpoint=ftp:{CANARY}",
    f"gs://bucket/x?token={CANARY}",
]


# ---------------------------------------------------------------- URLs


@pytest.mark.parametrize("url", URLS_WITH_SECRETS)
def test_a_url_with_credentials_is_refused_wherever_one_is_taken_and_never_repeated(url: str) -> None:
    """J6: stores, sinks, sources, options and the coordinator's address; before anything of them could be shown."""
    flow = Dataflow("flights")
    doors: list[Callable[[], object]] = [
        lambda: open_store(url),
        lambda: JsonlSink(url),
        lambda: ParquetSink(url),
        lambda: CsvSink(url),
        lambda: flow.read_jsonl("rows", url),
        lambda: flow.read_csv("rows", [url]),
        lambda: flow.read_parquet("rows", url),
        lambda: JobOptions.from_keywords({"checkpoints": url}),
        lambda: JobOptions.from_keywords({"coordinator": url, "token_file": "t"}),
        lambda: JobOptions.from_keywords({"coordinator": f"http://127.0.0.1:1, {url}", "token_file": "t"}),
        lambda: CoordinatorClient(url, "t"),
    ]
    for number, door in enumerate(doors):
        with pytest.raises(InvalidJob) as error:
            door()
        assert CANARY not in str(error.value), number
        assert "credentials" in str(error.value), number


@pytest.mark.parametrize("url", URLS_WITH_SETTINGS)
def test_unknown_settings_in_a_url_are_refused_by_name_and_not_by_value(url: str) -> None:
    """J6: `secret_key=` in a URL is the first thing that people try."""
    for door in (lambda: open_store(url), lambda: Dataflow("flights").read_csv("rows", url)):
        with pytest.raises(InvalidJob) as error:
            door()
        assert CANARY not in str(error.value)
    assert CANARY not in repr(JsonlSink(url))
    assert CANARY not in effective(JobOptions(checkpoints=url), {})["checkpoints"]
    flow = Dataflow("flights")
    flow.rate("numbers", 10, 1).sink("out", JsonlSink(url))
    assert CANARY not in flow.explain()


def test_a_sink_that_cannot_be_opened_names_its_place_without_its_settings() -> None:
    """J6"""
    flow = Dataflow("flights")
    flow.rate("numbers", 10, 1).sink("out", JsonlSink(f"s3://bucket/x?secret_key={CANARY}"))
    with pytest.raises(BarrierRuntimeError, match="cannot write to s3://bucket/x: ") as error:
        flow.run_local()
    assert CANARY not in str(error.value)


def test_an_endpoint_in_the_environment_may_not_carry_credentials_either(monkeypatch: pytest.MonkeyPatch) -> None:
    """J6: the endpoint is forwarded to the slots."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://user:{CANARY}@127.0.0.1:1")
    with pytest.raises(InvalidJob, match="AWS_ENDPOINT_URL must not carry credentials") as error:
        open_store("s3://bucket/x")
    assert CANARY not in str(error.value)


def test_what_is_shown_of_a_url_is_where_it_leads() -> None:
    assert shown(f"s3://AKIA:{CANARY}@bucket/some/prefix?x={CANARY}#{CANARY}") == "s3://bucket/some/prefix"
    assert shown("/a/folder@home") == "/a/folder@home"
    for harmless in (
        "/a/folder@home",
        "s3://bucket/with@sign",
        "s3://bucket/x?endpoint=http://127.0.0.1:9000",
        "file:///x@y",
    ):
        assert without_credentials(harmless, "it") == harmless


# ---------------------------------------------------------------- representations of objects


def test_nothing_that_holds_a_secret_shows_it() -> None:
    """J6: repr, str, format and the messages of wrong options."""
    secret = CANARY.encode()
    holders = [
        Token("operator", secret),
        SubmitReply("running", CANARY, "127.0.0.1", 1),
        CoordinatorClient("http://127.0.0.1:1", CANARY),
        TcpDataPlane(secret, "job", "run"),
        Initiator(secret, job="j", run_id="r", purpose="data", claims=b"", nonce=b"n" * 32),
        Acceptor(nonce=b"n" * 32, purpose="data", secret_of=lambda hello: secret),
        SlotSettings(
            graph=None,  # type: ignore[arg-type]
            options=SlotOptions(run_id="r"),
            secret=secret,
            control_addresses=(("127.0.0.1", 1),),
            storage_url="s3://bucket",
            environment={"AWS_ENDPOINT_URL": CANARY},
        ),
        JobOptions(spark_conf={"spark.hadoop.fs.s3a.secret.key": CANARY}),
    ]
    for holder in holders:
        for text in (repr(holder), str(holder), f"{holder}", f"{[holder]}"):
            assert CANARY not in text, type(holder)
            assert CANARY.encode().hex() not in text, type(holder)
    for wrong in ({"spark_conf": [CANARY]}, {"spark_conf": {"key": [CANARY]}}, {"checkpoints": [CANARY]}):
        with pytest.raises(InvalidJob) as error:
            JobOptions.from_keywords(wrong)
        assert CANARY not in str(error.value)


def test_options_show_what_they_are_told_to_and_not_what_they_hold() -> None:
    """J6: an allow-list; the text shows of a new option only that a value was given."""
    texts = {name for name, option in OPTIONS.items() if option.plain_type is str}
    hidden = {name for name in texts if OPTIONS[name].shown == "whether"}
    addresses = {"coordinator_host", "coordinator_bind", "coordinator_ports", "http_ports", "slot_host", "slot_ports"}
    names_of_files = {"ca", "https", "https_key", "tls_ca", "tls_certificate", "tls_key"}
    assert texts - hidden == {"checkpoints", "restore", "master", *addresses, *names_of_files}
    given = JobOptions(spark=CANARY, spark_conf={"a": CANARY}, **dict.fromkeys(hidden, CANARY))
    told = effective(given, dict.fromkeys(OPTIONS, "keyword"))
    assert CANARY not in str(told)
    assert told["token_file"] == told["spark_conf"] == "given, not shown [keyword]"


# ---------------------------------------------------------------- a run on S3


class Refusing(http.server.BaseHTTPRequestHandler):
    """An S3 server that knows no such key, and describes the request as S3 does."""

    def _refuse(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        given = self.headers.get("Authorization", "").encode()
        body = (
            b"<?xml version='1.0'?><Error><Code>SignatureDoesNotMatch</Code><Message>The request signature we "
            b"calculated does not match</Message><AWSAccessKeyId>AKIA</AWSAccessKeyId><StringToSign>"
            + given
            + b"</StringToSign></Error>"
        )
        self.send_response(403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _refuse

    def log_message(self, format: str, *arguments: object) -> None:
        logging.getLogger("refusing").debug(format, *arguments)


@pytest.fixture
def refusing_s3() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refusing)
    serving = threading.Thread(target=server.serve_forever, daemon=True)
    serving.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    serving.join()
    server.server_close()


RUN = """
    import logging, sys, traceback
    from barrier_runtime import Dataflow, JsonlSink, count

    logging.basicConfig(level=logging.DEBUG, stream=sys.stderr)
    for chatty in ("botocore", "boto3", "urllib3", "s3transfer"):  # theirs, and they say so
        logging.getLogger(chatty).setLevel(logging.INFO)
    checkpoints, out = sys.argv[1:3]
    flow = Dataflow("planted")
    numbers = flow.rate("numbers", 40_000, 2_000, keys=20)
    numbers.key_by("key").aggregate("count", n=count()).sink("out", JsonlSink(out))
    print(flow.explain(), repr(flow), vars(flow))
    try:
        result = flow.run_local(checkpoints=checkpoints, checkpoint_interval=0.05)
    except Exception as error:
        traceback.print_exc()
        print("FAILED", type(error).__name__, error)
    else:
        print(result, result.status)
"""


def run_with_planted_secrets(folder: Path, endpoint: str, checkpoints: str, out: str) -> str:
    """The program's output, and the contents of the temporary folder."""
    planted = {
        "AWS_ACCESS_KEY_ID": "AKIAPLANTED",
        "AWS_SECRET_ACCESS_KEY": CANARY,
        "AWS_SESSION_TOKEN": f"session{CANARY}",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": endpoint,
        "TMPDIR": str(folder),
    }
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(RUN), checkpoints, out],
        capture_output=True, text=True, timeout=200, check=False, cwd=ROOT, env={**os.environ, **planted},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    left = [path.read_text(errors="replace") for path in folder.rglob("*") if path.is_file()]
    return "\n".join([done.stdout, done.stderr, *left])


@pytest.mark.slow
def test_a_run_on_s3_that_fails_and_one_that_succeeds_tell_nobody_the_credentials(
    tmp_path: Path, s3_endpoint: str, s3_url: Callable[[str], str], refusing_s3: str
) -> None:
    """J6: once with credentials that S3 refuses, once with the same accepted; then everything is searched."""
    import boto3

    place = s3_url("").partition("?")[0].rstrip("/")
    said = run_with_planted_secrets(tmp_path, refusing_s3, f"{place}/checkpoints", f"{place}/out")
    assert "FAILED InvalidJob" in said, "the first run was to fail"
    assert "is not allowed (SignatureDoesNotMatch)" in said
    assert CANARY not in said
    said = run_with_planted_secrets(tmp_path, s3_endpoint, f"{place}/checkpoints", f"{place}/out")
    assert "job planted finished: 2,000 records read" in said, said[-3_000:]
    assert CANARY not in said
    client = boto3.client("s3", endpoint_url=s3_endpoint)
    bucket = place.removeprefix("s3://").split("/")[0]
    listed = client.list_objects_v2(Bucket=bucket)["Contents"]
    keys = [item["Key"] for item in listed]
    for wanted in ("checkpoints/planted/log/", "out/part-", "out/_commits/"):
        assert any(wanted in key for key in keys), f"nothing like {wanted} was searched"
    manifests = 0
    for key in keys:
        stored = client.get_object(Bucket=bucket, Key=key)
        body = stored["Body"].read()
        assert CANARY not in key
        assert CANARY.encode() not in body, key
        assert CANARY not in json.dumps(stored["Metadata"])
        record = decode_record(key, body) if "/planted/log/" in key else None
        if isinstance(record, Complete):  # contains the compressed manifest
            manifest = inline_data(record)
            assert manifest is not None
            assert CANARY.encode() not in manifest, key
            manifests += 1
    assert manifests > 0, "no manifest was searched"


def test_the_search_finds_what_is_said() -> None:
    """The canary is visible: the searched text of a program that prints the environment contains the canary."""
    done = subprocess.run(
        [sys.executable, "-c", "import os; print(dict(os.environ))"],
        capture_output=True, text=True, check=True, env={**os.environ, "AWS_SECRET_ACCESS_KEY": CANARY},
    )  # fmt: skip
    assert CANARY in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("client", [ObstoreS3Store, S3Store])
def test_what_s3_says_of_a_refused_request_is_not_passed_on(
    refusing_s3: str, monkeypatch: pytest.MonkeyPatch, client: type[ObstoreS3Store] | type[S3Store]
) -> None:
    """J6: S3 repeats the request's Authorization header in the response."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAPLANTED")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", CANARY)
    store = client("bucket", "x", refusing_s3, RetryBudget(attempts=1))
    for use in (
        lambda: store.put("k", b""),
        lambda: store.get("k"),
        lambda: list(store.list("")),
        lambda: store.delete(["k"]),
    ):
        with pytest.raises(InvalidJob) as error:
            use()
        chain: BaseException | None = error.value
        while chain is not None:
            assert CANARY not in f"{chain}{chain!r}"
            assert "Authorization" not in str(chain)
            assert "Signature=" not in str(chain)
            chain = chain.__cause__ or chain.__context__


def test_a_graph_that_travels_to_the_slots_carries_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """J6: Spark's closure holds places, not keys."""
    from pyspark import cloudpickle

    from barrier_runtime.graph.compiler import compile_plan

    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", CANARY)
    flow = Dataflow("flights")
    flow.rate("numbers", 10, 10, keys=2).key_by("key").aggregate("count", n=count()).sink(
        "out", JsonlSink("s3://bucket/out")
    )
    travelling = cloudpickle.dumps(compile_plan(flow.plan, 2))
    assert b"s3://bucket/out" in travelling
    assert CANARY.encode() not in travelling
