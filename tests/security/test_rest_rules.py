"""Rules of the REST interface besides authorization (see also tests/coordinator/server/test_rest.py): accepted
requests, logs and responses, and the token for every kind of connection.
"""

import ast
import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import msgspec
import pytest
from coordinator_world import spec

from barrier_runtime.coordinator.client.rest_token import Token, daemon_key
from barrier_runtime.coordinator.server.jobs import JobDirectory
from barrier_runtime.coordinator.server.rest import Api, ControlAddress, application
from barrier_runtime.coordinator.wire.messages import JobSpec
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.store.memory import MemoryStore

ROOT = Path(__file__).resolve().parents[2]
SECRET = "7" * 64
GOOD = {"Authorization": f"Bearer {SECRET}", "X-Barrier-Runtime": "1", "Content-Type": "application/json"}


def directory() -> JobDirectory:
    return JobDirectory(MemoryStore(), daemon_key=daemon_key(SECRET), leader="a", host="h")


@contextlib.asynccontextmanager
async def served() -> AsyncIterator[tuple[httpx.AsyncClient, JobDirectory]]:
    jobs = directory()
    app = application(jobs, ControlAddress("127.0.0.1", 7), Token("operator", SECRET.encode()), pid=42)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://coordinator") as client:
        yield client, jobs
    await jobs.close()


def body(job: JobSpec | None = None) -> bytes:
    return msgspec.json.encode(job or spec())


# ---------------------------------------------------------------- the token


@pytest.mark.parametrize("kind", ["websocket", "lifespan", "something new"])
def test_no_kind_of_connection_goes_round_the_token(kind: str) -> None:
    """G2: the check passes known kinds, and refuses unknown kinds."""
    reached: list[str] = []

    async def main() -> None:
        app = application(directory(), ControlAddress("h", 1), Token("operator", SECRET.encode()), pid=1)

        async def send(message: object) -> None:
            reached.append(str(message))

        async def receive() -> dict:
            return {"type": f"{kind}.connect"}

        with pytest.raises(InvalidJob, match="speaks HTTP only"):
            await app({"type": kind, "path": "/jobs", "headers": []}, receive, send)  # type: ignore[arg-type]

    asyncio.run(main())
    assert reached == []


@pytest.mark.parametrize(
    "file", ["coordinator/server/guard.py", "coordinator/client/rest_token.py", "coordinator/wire/handshake.py"]
)
def test_secrets_are_compared_in_constant_time(file: str) -> None:
    """G2, H1: by `hmac.compare_digest`, and by no operator."""
    tree = ast.parse((ROOT / file).read_text())
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    assert [call for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "compare_digest"]
    compared = [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Compare)]
    assert [
        text for text in compared if any(word in text for word in ("token", "mac ", "mac)", "secret ==", "given"))
    ] == []


async def test_the_open_route_says_nothing_of_jobs() -> None:
    """G2: only health and process id."""
    async with served() as (client, _):
        await client.put("/jobs/flights", content=body(), headers=GOOD)
        assert (await client.get("/healthz")).json() == {"status": "ok", "pid": 42}
        for trick in (
            "/healthz/",
            "/healthz/../jobs",
            "//healthz",
            "/healthz%2f..%2fjobs",
            "/HEALTHZ",
            "/healthz;/jobs",
        ):
            assert (await client.get(trick)).status_code in (401, 404), trick


# ---------------------------------------------------------------- accepted requests


@pytest.mark.parametrize(
    "kind",
    [
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/octet-stream",
        "",
    ],
)
async def test_only_json_is_taken(kind: str) -> None:
    """G3, G5: no form, no upload, no code."""
    async with served() as (client, jobs):
        answer = await client.put("/jobs/flights", content=body(), headers={**GOOD, "Content-Type": kind})
        assert answer.status_code == 415
        assert "only JSON is understood" in answer.json()["error"]
        assert jobs.jobs == {}
        good = {**GOOD, "Content-Type": "application/json; charset=utf-8"}
        assert (await client.put("/jobs/flights", content=body(), headers=good)).status_code == 200


def test_no_route_takes_code_files_or_names_of_logs() -> None:
    """G3: the routes and the types of their bodies, as a list that must be changed by hand."""
    api = Api(directory(), ControlAddress("h", 1), 1, b"k")
    routes = {(route.path, *sorted(route.methods - {"HEAD"})) for route in api.routes() if route.methods}
    assert routes == {
        ("/healthz", "GET"),
        ("/daemon", "GET"),
        ("/metrics", "GET"),
        ("/jobs", "GET"),
        ("/jobs/{job}", "GET"),
        ("/jobs/{job}", "PUT"),
        ("/jobs/{job}/checkpoints", "GET"),
        ("/jobs/{job}/checkpoints", "POST"),
        ("/jobs/{job}/rescale", "POST"),
        ("/jobs/{job}/leaving", "POST"),  # names a host, compared with hosts of slots
        ("/leaving", "POST"),  # the same, of all jobs
        ("/jobs/{job}/room", "PUT"),  # names of holders of cores, made printable and bounded
        ("/jobs/{job}/replace", "POST"),  # only the file's name; only the program's own file is opened
        ("/jobs/{job}/slots/{slot}/{subject}", "GET"),  # a slot's own log or stacks, no name of a file
        ("/jobs/{job}/rows", "POST"),  # names a step; a few rows of the job, and audited
        ("/jobs/{job}/steps", "GET"),
        ("/jobs/{job}/stop", "POST"),
        ("/jobs/{job}/trend", "GET"),
        ("/jobs/{job}/report", "GET"),
        ("/jobs/{job}/savepoints", "GET"),
        ("/jobs/{job}/savepoints", "POST"),
        ("/jobs/{job}/why", "GET"),
        ("/login-links", "POST"),
    }
    for kind in (JobSpec,):
        for field in msgspec.structs.fields(kind):
            assert not {"code", "file", "url", "class", "module", "secret", "token"} & set(field.name.split("_"))


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/jobs/", 404),
        ("GET", "/nothing", 404),
        ("GET", "/jobs/unknown", 404),
        ("POST", "/jobs/unknown/stop", 404),
        ("DELETE", "/jobs/flights", 405),
        ("PATCH", "/jobs", 405),
        ("TRACE", "/jobs", 405),
        ("GET", "/jobs/..%2f..%2fetc", 404),
        ("GET", "/jobs/%00", 400),
        ("GET", "/jobs/flights?run=%2e%2e%2f", 400),
        ("POST", "/jobs/flights/stop?run=%252e", 400),
    ],
)
async def test_refusals_have_one_shape(method: str, path: str, status: int) -> None:
    """G4, B2: JSON with a message, no redirect, no internals."""
    async with served() as (client, _):
        answer = await client.request(method, path, headers={**GOOD, "Host": "evil"})
        assert answer.status_code == status
        assert answer.headers["content-type"] == "application/json"
        assert "location" not in answer.headers
        assert "Traceback" not in answer.text
        if method != "HEAD":
            assert isinstance(answer.json()["error"], str)


@pytest.mark.parametrize(
    "changes",
    [
        {"restore": "9" * 5_000},
        {"submitter": "ann\nforged log line"},
        {"run_id": "../x"},
        {"parallelism": 2**62},
        {"slot_timeout_ms": -(2**62)},
    ],
    ids=["digits", "line end", "path", "huge", "negative"],
)
async def test_a_job_with_values_that_only_break_something_is_refused(changes: dict) -> None:
    """G4, G5"""
    async with served() as (client, jobs):
        answer = await client.put("/jobs/flights", content=body(spec(**changes)), headers=GOOD)
        assert answer.status_code == 400, answer.text
        assert jobs.jobs == {}


@pytest.mark.parametrize("length", ["1" * 5_000, "-1", "1e3", "٣", "99999999999"])
async def test_a_length_that_is_none_is_refused(length: str) -> None:
    """G5"""
    async with served() as (client, _):
        headers = {key.encode(): value.encode() for key, value in {**GOOD, "Content-Length": length}.items()}
        answer = await client.put("/jobs/flights", content=body(), headers=headers)
        assert answer.status_code == 413


# ---------------------------------------------------------------- logs and responses


async def test_audit_has_a_line_per_call_with_the_tokens_name_however_paths_are_written(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """G6: line ends in a path stay as they were sent."""
    forged = "/jobs/x%0a2026-01-01%20INFO%20token%20root:%20PUT%20/jobs/y"
    with caplog.at_level(logging.INFO, "coordinator.audit"):
        async with served() as (client, _):
            await client.put("/jobs/flights", content=body(), headers=GOOD)
            await client.put(forged, content=body(), headers=GOOD)
            await client.put("/jobs/flights", content=body(), headers={**GOOD, "Authorization": "Bearer wrong"})
            await client.get("/jobs", headers=GOOD)
    lines = [record.getMessage() for record in caplog.records if record.name == "coordinator.audit"]
    assert lines == ["token operator: PUT /jobs/flights", f"token operator: PUT {forged}"]


@pytest.mark.slow
async def test_a_request_id_counts_for_one_run_of_one_job_only() -> None:
    """G6: the same id for another run is another request."""
    async with served() as (client, jobs):
        for run_id in ("run-1", "run-2"):
            await client.put("/jobs/flights", content=body(spec(run_id=run_id)), headers=GOOD)
        for run_id in ("run-1", "run-1", "run-2"):
            answer = await client.post(
                f"/jobs/flights/stop?run={run_id}", content=b'{"mode":"now"}', headers={**GOOD, "X-Request-Id": "1"}
            )
            assert answer.status_code == 202
        for run_id in ("run-1", "run-2"):
            runner = jobs.run("flights", run_id)
            assert runner is not None
            assert runner.outcome is not None
        long = {**GOOD, "X-Request-Id": "x" * 129}
        assert (await client.post("/jobs/flights/stop", headers=long)).status_code == 400


async def test_nothing_may_be_kept_by_a_cache_or_taken_for_a_page() -> None:
    """G5, J6: the reply to a submission carries the job's secret."""
    async with served() as (client, _):
        answers = [
            await client.put("/jobs/flights", content=body(), headers=GOOD),
            await client.get("/jobs/flights", headers=GOOD),
            await client.get("/jobs/flights"),
            await client.get("/nothing", headers=GOOD),
        ]
        for answer in answers:
            assert answer.headers["cache-control"] == "no-store"
            assert answer.headers["x-content-type-options"] == "nosniff"
