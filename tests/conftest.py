"""Fixtures shared by several parts, and the collection of tests. An S3 endpoint is a moto server per test session, on a
free loopback port.
"""

import asyncio
import gc
import inspect
import os
import signal
import threading
import uuid
from collections.abc import Awaitable, Callable, Iterator

import pytest
from hypothesis import HealthCheck, settings

from barrier_runtime.state.store.memory import MemoryStore
from tests import cloud_emulators, scratch, spark_jvm
from tests.cloud_emulators import Cloud, Emulator, GoogleEmulator

# An example that takes long on a busy machine, to be made or to be tried, is no failure.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")
for profile, of_hundred in {"check": 10, "test": 25, "oracle": 1_000}.items():  # tests/drawn.py
    settings.register_profile(profile, settings.default, max_examples=of_hundred)

os.environ.setdefault("SPARK_SUBMIT_OPTS", spark_jvm.submit_options())  # also for JVMs of programs under test
os.environ.setdefault("SPARK_LAUNCHER_OPTS", spark_jvm.LIGHT)

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # a shell's background job; programs under test would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)

_LOOP_S = 300.0  # for a test that is a coroutine
_scratch = scratch.begin()  # None in workers: they have that of their parent


def pytest_sessionfinish(exitstatus: int) -> None:
    """Keeps the files of failed tests until the next run."""
    if _scratch is not None and exitstatus == 0:
        scratch.end(_scratch)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """Collection's objects (modules, items) live until the end: garbage collection of them takes a quarter of the time
    of collecting, and a tenth of a second at each full collection later.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs a coroutine test on a separate loop."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    asyncio.run(_bounded(pyfuncitem.obj(**arguments)))
    return True


async def _bounded(test: Awaitable[None]) -> None:
    """Runs without a separate task: tests count tasks."""
    task = asyncio.current_task()
    assert task is not None
    too_long = asyncio.get_running_loop().call_later(_LOOP_S, task.cancel, f"no end within {_LOOP_S:g} s")
    try:
        await test
    finally:
        too_long.cancel()


@pytest.fixture
def store() -> MemoryStore:
    """An empty store of this test's own."""
    return MemoryStore()


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """URL of an S3 server. Credentials are in the environment, as boto3 and subprocesses expect them."""
    from examples.servers.s3 import make_s3_server, moto_application

    wanted = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    server = make_s3_server(0, moto_application())
    serving = threading.Thread(target=server.serve_forever, name="s3-server", daemon=True)
    serving.start()
    yield f"http://127.0.0.1:{server.port}"
    server.shutdown()
    serving.join()
    server.server_close()
    for name, value in before.items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value


@pytest.fixture(scope="session")
def azure_emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    emulator = cloud_emulators.azure(tmp_path_factory.mktemp("azure"))
    yield emulator
    emulator.stop()


@pytest.fixture(scope="session")
def google_emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GoogleEmulator]:
    emulator = GoogleEmulator(tmp_path_factory.mktemp("google"))
    yield emulator
    emulator.close()


@pytest.fixture(params=["abfss", "gs"])
def cloud(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Cloud:
    if request.param == "gs":
        google: GoogleEmulator = request.getfixturevalue("google_emulator")
        return Cloud(google, google.bucket)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", cloud_emulators.AZURITE_KEY)
    azure: Emulator = request.getfixturevalue("azure_emulator")
    return Cloud(azure, lambda: cloud_emulators.azure_container(azure))


@pytest.fixture(scope="session")
def make_bucket(s3_endpoint: str) -> Callable[[str], None]:
    import boto3

    client = boto3.client("s3", endpoint_url=s3_endpoint)
    return lambda name: client.create_bucket(Bucket=name)


@pytest.fixture
def s3_url(s3_endpoint: str, make_bucket: Callable[[str], None]) -> Callable[[str], str]:
    """`s3_url("prefix")`: a storage URL in a bucket of this test's own."""
    bucket = f"test-{uuid.uuid4().hex[:12]}"
    make_bucket(bucket)
    return lambda prefix: f"s3://{bucket}/{prefix}?endpoint={s3_endpoint}"


@pytest.fixture
def manifests_are_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    """No manifest is small enough for the log record: each is a separate object, stored before the decision."""
    monkeypatch.setattr("barrier_runtime.coordinator.log.manifest.INLINE_BYTES", 0)


@pytest.fixture(params=[pytest.param(False, marks=pytest.mark.slow), True], ids=["by reference", "over the wire"])
def both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """The test runs twice: rows and messages handed over as objects, and as bytes with the rules of a cluster. Only the
    latter is in `make check`: every other test of a local run hands over objects."""
    monkeypatch.setattr("barrier_runtime.launch.local.wire_by_default", request.param)
    return bool(request.param)
