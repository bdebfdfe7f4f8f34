"""The REST interface: authentication, refusals, and no secrets in answers."""

import asyncio
import contextlib
import logging
from collections.abc import Iterator

import httpx
import msgspec
import pytest
from coordinator_world import options, spec

from barrier_runtime.coordinator.client.rest_token import Token, daemon_key
from barrier_runtime.coordinator.client.rest_types import SubmitReply, news_of
from barrier_runtime.coordinator.job.status_view import news_version
from barrier_runtime.coordinator.page import render
from barrier_runtime.coordinator.server import jobs
from barrier_runtime.coordinator.server.jobs import JobDirectory
from barrier_runtime.coordinator.server.rest import Api, ControlAddress, application
from barrier_runtime.coordinator.status.status import JobStatus, completed_brief
from barrier_runtime.coordinator.wire.messages import JobSpec
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.store.memory import MemoryStore
from tests.waiting import eventually

SECRET = "t" * 64
GOOD = {"Authorization": f"Bearer {SECRET}", "X-Barrier-Runtime": "1"}


def client(probe=None, store=None):
    """Returns a client of the application in this process, and the application's directory."""
    directory = JobDirectory(store or MemoryStore(), daemon_key=daemon_key(SECRET), leader="a", host="h", probe=probe)
    app = application(directory, ControlAddress("127.0.0.1", 7), Token("test", SECRET.encode()), pid=42)
    transport = httpx.ASGITransport(app=app)
    return httpx.AsyncClient(transport=transport, base_url="http://coordinator"), directory


@contextlib.asynccontextmanager
async def served(probe=None, store=None):
    http, directory = client(probe, store)
    async with http:
        yield http, directory
    await directory.close()


def body(job: JobSpec | None = None) -> bytes:
    return msgspec.json.encode(job or spec())


def every_route() -> Iterator[tuple[str, str]]:
    api = Api(None, ControlAddress("h", 1), 1, b"k")  # routes need no directory
    for route in api.routes():
        for method in route.methods - {"HEAD"}:
            yield method, route.path


@pytest.mark.parametrize(("method", "path"), sorted(every_route()))
async def test_every_route_but_health_needs_the_token(method, path):
    """G2: routes are enumerated, so that a new route can't be forgotten."""
    async with served() as (http, _):
        url = path.replace("{job}", "flights")
        for headers in (
            {},
            {"Authorization": "Bearer wrong"},
            {"Authorization": SECRET},
            {"Authorization": f"Basic {SECRET}"},
            {"Authorization": f"Bearer {SECRET}x"},
        ):
            answer = await http.request(method, url, headers={**headers, "X-Barrier-Runtime": "1"})
            assert answer.status_code == (200 if path == "/healthz" else 401)


async def test_a_defect_is_told_by_its_kind_and_place_and_not_by_its_text(monkeypatch):
    """The log has the rest; the text may hold a secret."""

    def failing(*_: object) -> str:
        raise LookupError("hunter2")

    monkeypatch.setattr(render, "report", failing)
    directory = JobDirectory(MemoryStore(), daemon_key=daemon_key(SECRET), leader="a", host="h", probe=None)
    app = application(directory, ControlAddress("127.0.0.1", 7), Token("test", SECRET.encode()), pid=42)
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://coordinator") as http:
        await http.put("/jobs/flights", content=body(), headers=GOOD)
        answer = await http.get("/jobs/flights/report", headers=GOOD)
    await directory.close()
    assert answer.status_code == 500
    assert "a defect, LookupError in failing (test_rest.py:" in answer.json()["error"]
    assert "hunter2" not in answer.text


async def test_a_rescale_is_asked_for_by_id_and_refused_with_the_reason():
    async with served() as (http, directory):
        await http.put("/jobs/flights", content=body(), headers=GOOD)
        ask = lambda what: http.post("/jobs/flights/rescale", content=what, headers=GOOD)  # noqa: E731
        for _ in range(2):
            answer = await ask('{"id": "r-1", "parallelism": 3}')
            assert (answer.status_code, answer.json()) == (202, {"answer": "accepted", "reason": ""})
        for wrong, why in (
            ('{"id": "r-2", "parallelism": 129}', "give 1 to 128, the job's max_parallelism"),
            ('{"id": "r-2", "parallelism": 4}', "wait until that is done"),
            ('{"id": "r-1", "parallelism": 4}', "use a new id"),
            ('{"id": "r-2", "parallelism": 4, "timeout_ms": 0}', "give milliseconds"),
            ("{}", "the body is not understood"),
        ):
            answer = await ask(wrong)
            assert answer.status_code == 400
            assert why in answer.json()["error"]
        (told,) = (await http.get("/jobs/flights", headers=GOOD)).json()["rescales"]
        assert (told["id"], told["before"], told["parallelism"], told["state"]) == ("r-1", 2, 3, "starting")
        assert directory.job("flights").spec.parallelism == 2


async def test_a_wrong_token_is_told_from_none_and_an_unknown_job_from_the_others():
    async with served() as (http, _):
        none = await http.get("/jobs")
        assert "a bearer token is required" in none.text
        wrong = await http.get("/jobs", headers={"Authorization": "Bearer wrong"})
        assert "not the daemon's token: use the token file that the daemon was started with" in wrong.text
        unknown = await http.get("/jobs/nojob", headers=GOOD)
        assert "job nojob is not known to this coordinator: `barrier-runtime status`" in unknown.text


@pytest.mark.parametrize(("method", "path"), [pair for pair in sorted(every_route()) if pair[0] != "GET"])
async def test_state_changing_calls_need_the_custom_header(method, path):
    """G5: CSRF."""
    async with served() as (http, _):
        answer = await http.request(
            method, path.replace("{job}", "flights"), headers={"Authorization": f"Bearer {SECRET}"}
        )
        assert answer.status_code == 403


async def test_a_job_is_submitted_once_however_often_it_is_sent():
    """G6."""
    async with served() as (http, directory):
        first = await http.put("/jobs/flights", content=body(), headers=GOOD)
        assert first.status_code == 200
        reply = msgspec.json.decode(first.content, type=SubmitReply)
        assert bytes.fromhex(reply.secret) == directory.secret("flights", "run-1")
        assert (reply.control_host, reply.control_port) == ("127.0.0.1", 7)
        assert reply.secret not in repr(reply)
        runner = directory.job("flights")
        again = await http.put("/jobs/flights", content=body(), headers=GOOD)
        assert again.status_code == 200
        assert directory.job("flights") is runner
        status = msgspec.json.decode((await http.get("/jobs/flights", headers=GOOD)).content, type=JobStatus)
        assert status.run_id == "run-1"
        jobs = (await http.get("/jobs", headers=GOOD)).json()
        assert [job["job"] for job in jobs] == ["flights"]
        assert (await http.get("/jobs/flights/checkpoints", headers=GOOD)).json()["completed"] == 0


async def test_a_status_that_is_asked_for_with_its_news_comes_when_there_are_others():
    """| the driver knows …      | the answer comes                              |
    |---|---|
    | nothing, or other news  | at once                                       |
    | the news there are      | when they change, at the latest after `wait=` |
    """
    async with served() as (http, directory):
        await http.put("/jobs/flights", content=body(), headers=GOOD)
        runner = directory.job("flights")
        await eventually(lambda: runner.phase == "waiting")
        known = msgspec.json.decode((await http.get("/jobs/flights", headers=GOOD)).content, type=JobStatus)
        same = f"/jobs/flights?run=run-1&unless={news_of(known)}"
        for url in (same, f"{same}&wait=0", f"{same}&wait=0.01", "/jobs/flights?run=run-1&unless=other&wait=3"):
            answer = msgspec.json.decode((await http.get(url, headers=GOOD)).content, type=JobStatus)
            assert news_of(answer) == news_of(known)
        waiting = asyncio.create_task(http.get(f"{same}&wait=3", headers=GOOD))
        await eventually(lambda: len(runner._listening) == 1)
        changed = asyncio.create_task(runner.changed(3_600))
        await eventually(lambda: len(runner._listening) == 2)
        runner.stop("now")
        await asyncio.wait_for(changed, 60)
        answer = msgspec.json.decode((await waiting).content, type=JobStatus)
        assert (answer.outcome, news_of(answer) == news_of(known)) == ("cancelled", False)
        assert not runner._listening


async def test_a_status_with_the_asked_news_is_brief_on_request():
    async with served() as (http, directory):
        await http.put("/jobs/flights", content=body(), headers=GOOD)
        runner = directory.job("flights")
        await eventually(lambda: runner.phase == "waiting")

        async def asked(query: str) -> JobStatus:
            return msgspec.json.decode((await http.get(f"/jobs/flights?{query}", headers=GOOD)).content, type=JobStatus)

        whole = await asked("run=run-1")
        version = news_of(whole)
        assert version == news_version(
            runner.facts, whole.phase, whole.outcome, whole.condition, whole.condition_reason
        )
        brief = await asked(f"unless={version}&wait=0.01&brief=1")
        assert (brief.brief, brief.chains, whole.brief, len(whole.chains)) == (True, (), False, 2)
        completed = completed_brief(brief, whole)
        assert completed == msgspec.structs.replace(whole, at_ms=completed.at_ms)
        assert not (await asked("unless=other&brief=1")).brief
        assert not (await asked("brief=1")).brief
        runner.stop("now")
        assert not (await asked(f"unless={version}&wait=3&brief=1")).brief, "there are other news"


@pytest.mark.parametrize("wait", ["soon", "-1", "nan", "3600"])
async def test_a_wait_that_is_no_time_or_too_long_is_refused(wait):
    async with served() as (http, _):
        await http.put("/jobs/flights", content=body(), headers=GOOD)
        answer = await http.get(f"/jobs/flights?wait={wait}", headers=GOOD)
        assert (answer.status_code, "give seconds, at most 3" in answer.text) == (400, True)


@pytest.mark.parametrize(
    "path",
    [
        "/jobs/%2e%2e",
        "/jobs/..%2f..%2fetc",
        "/jobs/%252e%252e",
        "/jobs/%252f",
        "/jobs/a%00b",
        "/jobs/UPPER",
        "/jobs/a b",
        "/jobs/" + "x" * 65,
    ],
)
async def test_path_tricks_in_ids_are_refused(path):
    """B2, G4."""
    async with served() as (http, directory):
        for method, suffix in (("GET", ""), ("PUT", ""), ("GET", "/checkpoints"), ("POST", "/stop")):
            answer = await http.request(method, path + suffix, headers=GOOD, content=body() if method == "PUT" else b"")
            assert answer.status_code in (400, 404)
            assert directory.jobs == {}


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"", 400),
        (b"\x80\x04\x95pickle", 400),
        (b"[" * 100_000, 400),
        (b'{"job": "flights"}', 400),
        (msgspec.json.encode({**msgspec.to_builtins(spec()), "code": "print()"}), 400),
        (body(spec(job="other")), 400),
        (body(spec(parallelism=0)), 400),
        (body(spec(checkpoints=options(interval_ms=1))), 400),
        (b" " * (1024 * 1024 + 1), 413),
    ],
    ids=["empty", "pickle", "deep", "partial", "unknown field", "other job", "bad spec", "bad option", "too long"],
)
async def test_a_body_that_is_no_job_is_refused(content, status):
    """G3, G5, B4."""
    async with served() as (http, directory):
        answer = await http.put("/jobs/flights", content=content, headers=GOOD)
        assert answer.status_code == status
        assert "error" in answer.json()
        assert directory.jobs == {}


async def test_a_body_without_a_length_is_cut_off_too():
    """G5."""

    async def endless():
        for _ in range(40):
            yield b" " * 65536

    async with served() as (http, _):
        answer = await http.put("/jobs/flights", content=endless(), headers=GOOD)
        assert answer.status_code == 413


async def test_what_is_not_there_is_said_so():
    async with served() as (http, _):
        assert (await http.get("/jobs/unknown", headers=GOOD)).status_code == 404
        assert (await http.post("/jobs/unknown/stop", headers=GOOD)).status_code == 404
        assert (await http.get("/files/x", headers=GOOD)).status_code == 404
        assert (await http.delete("/jobs/flights", headers=GOOD)).status_code in (404, 405)


async def test_a_trigger_before_the_job_runs_is_refused_with_the_reason():
    async with served() as (http, _):
        await http.put("/jobs/flights", content=body(), headers=GOOD)
        answer = await http.post("/jobs/flights/checkpoints", headers=GOOD)
        assert answer.status_code == 409
        assert "not running" in answer.json()["reason"]


@pytest.mark.parametrize("broken", [False, True])
async def test_who_stops_a_job_that_has_ended_hears_how_it_ended_and_why(broken):
    async with served() as (http, directory):
        await http.put("/jobs/flights", content=body(), headers=GOOD)
        runner = directory.job("flights")
        await eventually(lambda: runner.phase == "waiting")
        assert (await http.post("/jobs/flights/stop", content=b'{"mode":"now"}', headers=GOOD)).status_code == 202
        await eventually(lambda: runner.outcome is not None)
        how = "(stopped)"
        if broken:
            runner._broken, how = "a defect: file it", "(failed): a defect: file it"
        for mode in ("checkpoint", "drain", "now"):
            answer = await http.post("/jobs/flights/stop", content=f'{{"mode":"{mode}"}}', headers=GOOD)
            told = answer.json()
            assert (answer.status_code, told["answer"]) == (409, "refused")
            assert f"job flights has ended {how}" in told["reason"]


async def test_steering_a_job_that_ended_before_this_coordinator_reports_the_end():
    store = MemoryStore()
    async with served(store=store) as (http, directory):
        await http.put("/jobs/flights", content=body(), headers=GOOD)
        await eventually(lambda: directory.job("flights").phase == "waiting")
        directory.job("flights").stop("now")
        await eventually(lambda: directory.job("flights").outcome is not None)
    async with served(store=store) as (http, _):
        for what in ("stop", "checkpoints"):
            answer = await http.post(f"/jobs/flights/{what}", headers=GOOD)
            assert answer.status_code == 404
            assert "job flights has ended (stopped)" in answer.json()["error"]


async def test_jobs_that_ended_long_ago_are_told_from_the_log(monkeypatch):
    """A daemon may run a million jobs."""
    monkeypatch.setattr(jobs, "_JOBS_KEPT", 2)
    async with served() as (http, directory):
        names = [f"flights-{number}" for number in range(4)]
        for name in (*names, "lives"):
            await http.put(f"/jobs/{name}", content=body(spec(job=name)), headers=GOOD)
            await eventually(lambda name=name: directory.job(name).phase == "waiting")
        last = [directory.job(name) for name in names]
        for runner in (last[1], last[2], last[3], last[0]):
            runner.stop("now")
            await eventually(lambda runner=runner: runner.outcome is not None)
        await eventually(lambda: len(directory.jobs) == 3)
        assert "lives" in directory.jobs
        for name in names:
            answer = await http.get(f"/jobs/{name}", headers=GOOD)
            assert msgspec.json.decode(answer.content, type=JobStatus).outcome == "cancelled"


async def test_a_repeated_request_id_acts_once():
    """G6."""
    async with served() as (http, directory):
        await http.put("/jobs/flights", content=body(), headers=GOOD)
        runner = directory.job("flights")
        stops = []
        runner.stop = lambda mode, savepoint: stops.append(mode)
        headers = {**GOOD, "X-Request-Id": "1"}
        for _ in range(3):
            answer = await http.post("/jobs/flights/stop", content=b'{"mode":"now"}', headers=headers)
            assert answer.status_code == 202
        assert stops == ["now"]
        await http.post("/jobs/flights/stop", content=b'{"mode":"now"}', headers={**GOOD, "X-Request-Id": "2"})
        assert stops == ["now", "now"]
        assert (await http.post("/jobs/flights/stop", content=b'{"mode":"burn"}', headers=GOOD)).status_code == 400


async def test_state_changes_are_audited_by_token_name_and_never_by_value(caplog):
    """G6, J6."""
    with caplog.at_level(logging.DEBUG):
        async with served() as (http, _):
            await http.put("/jobs/flights", content=body(), headers=GOOD)
            await http.get("/jobs/flights", headers=GOOD)
    lines = [record.getMessage() for record in caplog.records]
    assert "token test: PUT /jobs/flights" in lines
    assert not any("GET" in line for line in lines if line.startswith("token"))
    assert not any(SECRET in line or daemon_key(SECRET).hex() in line for line in lines)


async def test_no_answer_allows_another_origin_or_carries_a_secret():
    """G5, J6: the submit reply alone carries the job's secret, to who has the token."""
    async with served() as (http, directory):
        await http.put("/jobs/flights", content=body(), headers={**GOOD, "Origin": "http://evil"})
        secret = directory.secret("flights", "run-1").hex()
        for path in ("/healthz", "/jobs", "/jobs/flights", "/jobs/flights/checkpoints"):
            answer = await http.get(path, headers={**GOOD, "Origin": "http://evil"})
            assert "access-control-allow-origin" not in answer.headers
            assert secret not in answer.text
            assert SECRET not in answer.text


async def test_a_store_that_can_not_hold_a_log_is_refused_with_the_reason():
    """O9."""
    asked = []

    def probe():
        asked.append(1)
        if len(asked) == 1:
            raise InvalidJob("it ignores If-None-Match: use another store")

    async with served(probe=probe) as (http, directory):
        answer = await http.put("/jobs/flights", content=body(), headers=GOOD)
        assert answer.status_code == 400
        assert "If-None-Match" in answer.json()["error"]
        assert directory.jobs == {}
        for run in ("run-1", "run-2"):
            await http.put("/jobs/flights", content=body(spec(run_id=run)), headers=GOOD)
        assert len(asked) == 2, "a store that passed is not asked again"


async def test_a_second_run_of_a_job_is_led_beside_the_first_until_the_log_decides():
    async with served() as (http, directory):
        await http.put("/jobs/flights", content=body(), headers=GOOD)
        await http.put("/jobs/flights", content=body(spec(run_id="run-2")), headers=GOOD)
        assert directory.job("flights").spec.run_id == "run-2"
        with contextlib.suppress(KeyError):
            first = await directory.for_slot("flights", "run-1")
            assert first.spec.run_id == "run-1"


@pytest.mark.slow
async def test_a_program_sees_and_stops_its_own_run_though_another_was_submitted_since():
    """The program of a run that is being taken over must not end the successor."""
    async with served() as (http, directory):
        for run_id in ("run-1", "run-2"):
            sent = await http.put("/jobs/flights", content=body(spec(run_id=run_id)), headers=GOOD)
            assert sent.status_code == 200
        for query, run_id in (("", "run-2"), ("?run=run-1", "run-1"), ("?run=run-2", "run-2")):
            answer = await http.get(f"/jobs/flights{query}", headers=GOOD)
            assert msgspec.json.decode(answer.content, type=JobStatus).run_id == run_id
        stopped = await http.post("/jobs/flights/stop?run=run-1", content=b'{"mode": "now"}', headers=GOOD)
        assert stopped.status_code == 202
        assert directory.run("flights", "run-1").outcome.outcome == "cancelled"
        assert directory.run("flights", "run-2").outcome is None
        assert (await http.get("/jobs/flights?run=run-3", headers=GOOD)).status_code == 404
        assert (await http.get("/jobs/flights?run=../x", headers=GOOD)).status_code == 400


async def test_a_leaving_host_is_named_in_the_query_or_the_body():
    async with served() as (http, _):
        await http.put("/jobs/flights", content=body(), headers=GOOD)
        for path, content in (
            ("/leaving?host=spot", ""),
            ("/jobs/flights/leaving?host=spot", ""),
            ("/jobs/flights/leaving", '{"host": "spot"}'),
        ):
            answer = await http.post(path, content=content, headers=GOOD)
            assert (answer.status_code, answer.json()) == (202, {"slots": {"flights": 0}})
        for content in ("{}", '{"host": ""}', '{"host": "a\\nb"}', f'{{"host": "{"x" * 256}"}}', ""):
            answer = await http.post("/leaving", content=content, headers=GOOD)
            assert answer.status_code == 400
