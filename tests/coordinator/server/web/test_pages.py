"""The page's routes without a browser: access, and headers of every answer."""

import asyncio
import contextlib
import logging
import time

import httpx
import msgspec
import page_facts
import pytest
from coordinator_world import spec
from msgspec.structs import replace

from barrier_runtime.coordinator.client.rest_token import Token, daemon_key
from barrier_runtime.coordinator.client.rest_types import JobSummary
from barrier_runtime.coordinator.page.render import CommandLine
from barrier_runtime.coordinator.server.jobs import JobDirectory
from barrier_runtime.coordinator.server.rest import ControlAddress, PageAddress, application
from barrier_runtime.coordinator.server.rest_calls import steps_of, steps_of_run, trend_of_run
from barrier_runtime.coordinator.server.web.pages import KeptFor, Pages, PageSource, pages_for
from barrier_runtime.coordinator.server.web.sessions import HEADERS, LoginLinks, PageSessions, is_open
from barrier_runtime.state.errors import Unavailable
from barrier_runtime.state.store.memory import MemoryStore

SECRET = "t" * 64
BEARER = {"Authorization": f"Bearer {SECRET}", "X-Barrier-Runtime": "1"}
HTML = {"Accept": "text/html,application/xhtml+xml"}


@contextlib.asynccontextmanager
async def served(store=None):
    directory = JobDirectory(store or MemoryStore(), daemon_key=daemon_key(SECRET), leader="a", host="h")
    token, page = Token("test", SECRET.encode()), PageAddress("http://daemon:9", "/run/of.token")
    app = application(directory, ControlAddress("127.0.0.1", 7), token, pid=42, page=page)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://daemon") as http:
        await directory.submit(spec())
        yield http
    await directory.close()


async def log_in(http: httpx.AsyncClient) -> None:
    answer = await http.post("/login", data={"token": SECRET})
    assert (answer.status_code, answer.headers["location"]) == (303, "/")


def every_page() -> list[tuple[str, str]]:
    sessions = PageSessions(b"x")
    pages = Pages(None, Token("x", b"x"), sessions, LoginLinks(b"x"), CommandLine())  # routes need no source
    routes = [(method, route.path) for route in pages.routes() for method in route.methods - {"HEAD"}]
    return sorted(
        (method, path.replace("{job}", "flights").replace("{checkpoint}", "1").replace("{name}", "page.css"))
        for method, path in routes
    )


@pytest.mark.parametrize(("method", "path"), every_page())
async def test_every_page_but_the_login_needs_a_session(method, path):
    """G2: routes are enumerated, so that a new route can't be forgotten."""
    async with served() as http:
        accept = {"Accept": "text/event-stream"} if path.endswith("/events") else HTML
        for cookie in ({}, {"Cookie": f"{PageSessions(b'other').cookie}=1.2.3"}):
            answer = await http.request(method, path, headers={**accept, **cookie})
            if is_open(path):
                assert answer.status_code in (200, 303, 401)
                assert "run-1" not in answer.text
            elif path.endswith("/events"):
                assert answer.status_code == 401
            else:
                assert (answer.status_code, answer.headers["location"]) == (303, "/login")
            assert "run-1" not in answer.text


async def test_looks_at_log_stacks_and_rows_are_audited(caplog):
    """G6: log records may quote rows."""
    with caplog.at_level(logging.INFO, "coordinator.audit"):
        async with served() as http:
            await log_in(http)
            caplog.clear()
            for path in ("slots/0/log", "slots/0/stacks", "steps/0/rows?step=numbers"):
                await http.get(f"/jobs/flights/{path}", headers=HTML)
    lines = [record.getMessage() for record in caplog.records if record.name == "coordinator.audit"]
    told = [f"looked at {each} of job flights" for each in ("log of slot 0", "stacks of slot 0", "rows of a step")]
    assert lines == [f"token test: {each}" for each in told]


async def test_every_answer_has_the_policy_and_no_page_is_kept():
    """G3."""
    async with served() as http:
        await log_in(http)
        for path in (
            "/",
            "/login",
            "/jobs/flights",
            "/jobs/flights/checkpoints",
            "/jobs/nojob",
            "/jobs/flights/report",
        ):
            answer = await http.get(path, headers=HTML)
            assert {name: answer.headers[name] for name in HEADERS} == HEADERS, path
            assert "unsafe" not in answer.headers["content-security-policy"]
            if "report" not in path:
                assert " style=" not in answer.text
                assert "<script>" not in answer.text


async def test_static_files_are_kept_and_only_the_three_are_served():
    async with served() as http:
        for name in ("page.css", "page.js", "icon.svg"):
            answer = await http.get(f"/static/{name}")
            assert answer.status_code == 200
            assert "immutable" in answer.headers["cache-control"]
        for name in ("none.css", "..%2frender.py", "%2e%2e/templates/job.html", "page.css%00"):
            assert (await http.get(f"/static/{name}")).status_code == 404


async def test_a_session_counts_as_the_token_but_not_without_the_header():
    """G5."""
    async with served() as http:
        await log_in(http)
        assert (await http.get("/jobs")).json()[0]["job"] == "flights"
        assert (await http.post("/jobs/flights/stop")).status_code == 403
        answer = await http.post("/jobs/flights/stop", headers={"X-Barrier-Runtime": "1"})
        assert answer.status_code == 202
        wrong = {"Authorization": "Bearer wrong"}
        assert (await http.get("/jobs", headers=wrong)).status_code == 401, "what is given must be right"


async def test_a_session_makes_no_links():
    """G2: it would make itself longer."""
    async with served() as http:
        await log_in(http)
        assert (await http.post("/login-links", headers={"X-Barrier-Runtime": "1"})).status_code == 403
        assert (await http.post("/login-links", headers=BEARER)).json()["path"].startswith("/login?once=")


@pytest.mark.parametrize("more", [{}, {"Authorization": ""}], ids=["no header", "empty header"])
async def test_an_empty_authorization_gives_a_session_no_rights_of_the_token(more):
    """G2: neither a link, which makes the session longer, nor the secret of a job."""
    async with served() as http:
        await log_in(http)
        headers = {"X-Barrier-Runtime": "1", **more}
        link = await http.post("/login-links", headers=headers)
        submitted = await http.put("/jobs/flights", content=msgspec.json.encode(spec()), headers=headers)
        assert (link.status_code, submitted.status_code) == (403, 403)
        assert "once=" not in link.text
        assert "secret" not in submitted.json()
        assert "a session must not learn the job's secret" in submitted.json()["error"]


async def test_looking_ahead_does_not_use_a_link_up():
    async with served() as http:
        path = (await http.post("/login-links", headers=BEARER)).json()["path"]
        assert "set-cookie" not in (await http.head(path)).headers
        cookie = (await http.get(path)).headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert (await http.get(path)).status_code == 401


async def test_a_link_that_opens_nothing_says_why_and_how_to_get_another():
    """Where the token's file is, only who was given a link is told."""
    async with served() as http:
        path = (await http.post("/login-links", headers=BEARER)).json()["path"] + "&to=/jobs/flights"
        assert (await http.get(path)).status_code == 200
        used = await http.get(path)
        assert used.status_code == 401
        assert "was used already" in used.text
        assert "barrier-runtime page flights --coordinator http://daemon:9 --token-file /run/of.token" in used.text
        guessed = await http.get("/login?once=1790000000000.x.y&to=/jobs/flights")
        assert guessed.status_code == 401
        assert "older than an hour, or of another coordinator" in guessed.text
        assert "barrier-runtime page flights --coordinator http://127.0.0.1:PORT --token-file FILE" in guessed.text
        assert "of.token" not in guessed.text


async def test_a_link_outlives_its_process_and_opens_once_in_all():
    store = MemoryStore()
    async with served(store) as http:
        one, other = [(await http.post("/login-links", headers=BEARER)).json()["path"] for _ in range(2)]
        assert (await http.get(one)).status_code == 200
    async with served(store) as http:
        assert (await http.get(one)).status_code == 401
        assert (await http.get(other)).status_code == 200


async def test_while_the_storage_is_away_a_link_is_kept_for_later():
    class Away(MemoryStore):
        away = True

        def put_if_absent(self, key, data):
            if self.away and key.startswith("_logins/"):
                raise Unavailable("timed out")
            return super().put_if_absent(key, data)

    store = Away()
    async with served(store) as http:
        path = (await http.post("/login-links", headers=BEARER)).json()["path"]
        answer = await http.get(path)
        assert answer.status_code == 503
        assert "set-cookie" not in answer.headers
        assert "This link cannot be checked now, timed out: try again." in answer.text
        store.away = False
        assert "set-cookie" in (await http.get(path)).headers


async def test_a_form_of_another_site_logs_nobody_in():
    async with served() as http:
        answer = await http.post("/login", data={"token": SECRET}, headers={"Sec-Fetch-Site": "cross-site"})
        assert answer.status_code == 403
        assert "set-cookie" not in answer.headers


@pytest.mark.parametrize("body", [b"", b"token=", b"token=%ff%fe", b"\xff\xfe", b"token=a&token=" + SECRET.encode()])
async def test_what_is_no_token_logs_nobody_in(body):
    """G5."""
    async with served() as http:
        answer = await http.post("/login", content=body)
        assert answer.status_code == 401
        assert "set-cookie" not in answer.headers


async def test_wrong_tokens_are_slowed_down_and_do_not_lock_the_right_one_out():
    """G5."""
    async with served() as http:
        answers = [await http.post("/login", data={"token": "wrong"}) for _ in range(6)]
        assert [answer.status_code for answer in answers] == [401] * 5 + [429]
        assert int(answers[-1].headers["retry-after"]) == 1
        assert (await http.post("/login", data={"token": SECRET})).status_code == 303
        assert (await http.post("/login", data={"token": "wrong"})).status_code == 401, "counted anew"


async def test_a_large_form_is_refused_before_it_is_read():
    """G5."""
    async with served() as http:
        answer = await http.post("/login", content=b"token=" + b"x" * 20_000)
        assert answer.status_code == 413


async def test_the_report_is_a_file_for_the_token_and_for_a_session():
    async with served() as http:
        by_token = await http.get("/jobs/flights/report", headers=BEARER)
        await log_in(http)
        by_session = await http.get("/jobs/flights/report", headers=HTML)
        for answer in (by_token, by_session):
            assert answer.status_code == 200
            assert answer.headers["content-disposition"] == 'attachment; filename="flights-report.html"'
            assert SECRET not in answer.text


async def test_pages_that_ask_at_once_are_rendered_once(monkeypatch):
    """A page of 100 checkpoints takes milliseconds: not once per reader."""
    from barrier_runtime.coordinator.server.web import pages as module

    rendered = []

    def counted(facts):
        rendered.append(facts)
        time.sleep(0)
        return real(facts)

    real = module.render.job_page
    monkeypatch.setattr(module.render, "job_page", counted)
    monkeypatch.setattr(module, "_RENDERED_S", 3600.0)
    async with served() as http:
        await log_in(http)
        answers = await asyncio.gather(*(http.get("/jobs/flights", headers=HTML) for _ in range(5)))
    assert {answer.status_code for answer in answers} == {200}
    assert len(rendered) == 1


@pytest.mark.slow
async def test_ages_are_by_the_jobs_clock_which_is_never_set():
    """Someone set the machine's clock ahead while the coordinator ran: the checkpoint is not older for that."""
    status = page_facts.status(at_ms=page_facts.NOW_MS)

    async def of(job, run):
        return status

    source = PageSource(
        list, None, of, None, lambda job: status, lambda job, run: (), lambda job, run: {}, None, None, MemoryStore()
    )
    app = pages_for(source, Token("x", b"x"), PageSessions(b"x"), LoginLinks(b"x"), "http://daemon:9", "/run/of.token")
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://daemon") as http:
        for path in ("/jobs/flights", "/jobs/flights/report"):
            assert 'data-live="checkpoint_age">890 ms<' in (await http.get(path, headers=HTML)).text
    pages = Pages(source, Token("x", b"x"), PageSessions(b"x"), LoginLinks(b"x"), CommandLine())
    assert pages._tick("flights").figures["checkpoint_age"] == "890 ms"


@pytest.mark.slow
async def test_the_page_and_report_of_an_earlier_run_have_no_figures_of_the_present_run():
    async def of(job, run):
        return page_facts.status(run_id=run or "run-2")

    asked = []

    def trend(job, run):
        asked.append((job, run))
        return ()

    source = PageSource(
        list,
        None,
        of,
        None,
        lambda job: page_facts.status(run_id="run-2"),
        trend,
        lambda *run: asked.append(run) or {},
        None,
        None,
        MemoryStore(),
    )
    app = pages_for(source, Token("x", b"x"), PageSessions(b"x"), LoginLinks(b"x"), "http://daemon:9", "/run/of.token")
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://daemon") as http:
        for path in ("/jobs/flights", "/jobs/flights/report", "/jobs/flights/steps/0"):
            answer = await http.get(f"{path}?run=run-1", headers=HTML)
            assert answer.status_code == 200
            assert "data-events" not in answer.text, "ticks are of the present run"
        assert "this is run run-1, and the job" in (await http.get("/jobs/flights?run=run-1", headers=HTML)).text
        assert "data-events" in (await http.get("/jobs/flights?run=run-2", headers=HTML)).text
    assert set(asked) == {("flights", "run-1"), ("flights", "run-2")}
    assert asked[-1] == ("flights", "run-2")
    directory = JobDirectory(MemoryStore(), daemon_key=daemon_key(SECRET), leader="a", host="h")
    await directory.submit(spec())
    try:
        assert steps_of_run(directory, "flights", "run-1").keys() == steps_of(directory.job("flights")).keys() != set()
        assert (trend_of_run(directory, "flights", "old"), steps_of_run(directory, "flights", "old")) == ((), {})
    finally:
        await directory.close()


def test_an_idle_list_changes_once_a_minute_and_at_once_with_a_figure():
    ended = JobSummary("flights", "run-1", "finished", "finished", "FINISHED", at_ms=60_000)
    jobs = [ended]
    source = PageSource(lambda: jobs, None, None, None, None, None, None, None, None, MemoryStore())
    pages = Pages(source, Token("x", b"x"), PageSessions(b"x"), LoginLinks(b"x"), CommandLine())
    first = pages._tick("").changes
    jobs[:] = [replace(ended, at_ms=119_999)]
    assert pages._tick("").changes == first
    jobs[:] = [replace(ended, at_ms=120_000)]
    assert pages._tick("").changes != first, "ages are shown"
    jobs[:] = [replace(ended, restarts=1)]
    assert pages._tick("").changes != first


async def test_open_pages_share_the_jobs_of_other_daemons_for_a_time():
    now_s, made = [0.0], []

    async def make():
        made.append(now_s[0])
        if now_s[0] == 30.0:
            raise Unavailable("the store does not answer")
        return len(made)

    shared = KeptFor(make, 30.0, lambda: now_s[0])
    assert await asyncio.gather(*(shared.get() for _ in range(5))) == [1] * 5
    now_s[0] = 29.9
    assert await shared.get() == 1
    now_s[0] = 30.0
    with pytest.raises(Unavailable):
        await shared.get()
    now_s[0] = 31.0
    assert await shared.get() == 3, "an error is not kept"


async def test_a_job_that_has_come_here_is_listed_once():
    here = JobSummary("flights", "run-1", "running", None, "RUNNING", parallelism=2)

    async def elsewhere():
        return [replace(here, condition="STANDBY"), replace(here, job="far", condition="STANDBY")]

    source = PageSource(lambda: [here], elsewhere, None, None, None, None, None, None, None, MemoryStore())
    app = pages_for(source, Token("x", b"x"), PageSessions(b"x"), LoginLinks(b"x"), "http://daemon:9", "/run/of.token")
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://daemon") as http:
        html = (await http.get("/", headers=HTML)).text
    assert (html.count('href="/jobs/flights"'), html.count('href="/jobs/far"')) == (1, 1)


@pytest.mark.parametrize("number", ["-1", "x", "1e3", "9" * 20, "9" * 6_000])
async def test_what_is_no_number_of_a_checkpoint_is_said_to_be_none(number):
    async with served() as http:
        await log_in(http)
        answer = await http.get(f"/jobs/flights/checkpoints/{number}", headers=HTML)
    assert answer.status_code == 404
    assert "is not one of them" in answer.text
    assert len(answer.text) < 2_000
