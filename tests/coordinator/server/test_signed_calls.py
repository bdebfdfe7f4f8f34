"""Signed calls of REST: accepted once and unchanged; the token is not sent and the job's secret is hidden."""

import contextlib
import time
import uuid

import httpx
import msgspec
import pytest
from coordinator_world import spec

from barrier_runtime.coordinator.client.embedded import EmbeddedCoordinator
from barrier_runtime.coordinator.client.rest_token import (
    SCHEME,
    WINDOW_MS,
    Call,
    Signatures,
    Token,
    covered,
    daemon_key,
    masked,
    nonce_of,
    signature,
    signing_key,
)
from barrier_runtime.coordinator.server.guard import MAX_BODY_BYTES
from barrier_runtime.coordinator.server.jobs import JobDirectory
from barrier_runtime.coordinator.server.rest import ControlAddress, application
from barrier_runtime.coordinator.server.web.sessions import now_ms
from barrier_runtime.state.errors import Unavailable
from barrier_runtime.state.store.memory import MemoryStore

SECRET = "t" * 64
KEY = signing_key(SECRET)
NONCE = "n" * 32
NOW = 1_000_000_000
MORE = {"X-Request-Id": "id", "X-Storage": "s3://b"}


def signed(method="GET", target=b"/jobs?run=1", body=b"", time_ms=NOW, nonce=NONCE, key=KEY, more=MORE):
    return signature(key, Call(method, target, body, covered(more)), time_ms, nonce)


def verdict(authorization, method="GET", target=b"/jobs?run=1", body=b"", now=NOW, signatures=None):
    call = Call(method, target, body, covered(MORE))
    return (signatures or Signatures(SECRET.encode())).verdict(authorization, call, now)


def test_a_signature_covers_method_path_query_headers_body_time_nonce_and_key():
    assert verdict(signed()) == ""
    other = [
        signed(method="PUT"),
        signed(target=b"/jobs?run=2"),
        signed(target=b"/job"),
        signed(body=b"{}"),
        signed(key=signing_key("u" * 64)),
        signed(more={}),
        signed(more={**MORE, "X-Request-Id": "other"}),
        signed(more={"X-Request-Id": "ids3:", "X-Storage": "//b"}),
        signed().replace(str(NOW), str(NOW + 1)),
        signed().replace(NONCE, "m" * 32),
    ]
    assert [verdict(each) for each in other] == ["wrong"] * len(other)


def test_a_call_is_accepted_once_and_only_near_its_time():
    signatures = Signatures(SECRET.encode())
    assert verdict(signed(), signatures=signatures) == ""
    assert verdict(signed(), signatures=signatures) == "repeated"
    for now in (NOW - WINDOW_MS, NOW + WINDOW_MS):
        assert verdict(signed(), now=now) == ""
        assert verdict(signed(), now=now, signatures=signatures) == "repeated"
    for now in (NOW - WINDOW_MS - 1, NOW + WINDOW_MS + 1):
        assert verdict(signed(), now=now) == "another time"


def test_nonces_are_forgotten_when_their_time_is_over():
    signatures = Signatures(SECRET.encode())
    for number in range(100):
        now = NOW + number * WINDOW_MS
        assert verdict(signed(time_ms=now, nonce=f"{number:032}"), now=now, signatures=signatures) == ""
    assert len(signatures._seen) <= 4


@pytest.mark.parametrize(
    "text", ["", SCHEME, f"{SCHEME} 1:2", f"{SCHEME} x:{NONCE}:mac", f"{SCHEME} 1:short:mac", f"{SCHEME} ²:{NONCE}:m"]
)
def test_other_texts_are_no_signature(text):
    assert verdict(text) == "not understood"
    assert nonce_of(text) == ""


def test_a_hidden_secret_shows_only_with_key_and_nonce():
    secret = bytes(range(32))
    hidden = masked(KEY, NONCE, secret)
    assert hidden != secret
    assert masked(KEY, NONCE, hidden) == secret
    assert masked(KEY, "m" * 32, hidden) != secret
    assert masked(signing_key("u" * 64), NONCE, hidden) != secret


@contextlib.asynccontextmanager
async def served():
    directory = JobDirectory(MemoryStore(), daemon_key=daemon_key(SECRET), leader="a", host="h")
    app = application(directory, ControlAddress("127.0.0.1", 7), Token("test", SECRET.encode()), pid=42)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://coordinator") as http:
        yield http, directory
    await directory.close()


def headers(method, target, body=b"", **more):
    said = {"nonce": uuid.uuid4().hex, "time_ms": now_ms(), "more": {}, **more}
    return {"Authorization": signed(method, target.encode(), body, **said), "X-Barrier-Runtime": "1"}


async def test_signed_calls_are_served_once():
    async with served() as (http, directory):
        body = msgspec.json.encode(spec())
        submit = headers("PUT", "/jobs/flights", body)
        answer = await http.put("/jobs/flights", content=body, headers=submit)
        assert answer.status_code == 200, answer.text
        again = await http.put("/jobs/flights", content=body, headers=submit)
        assert (again.status_code, again.json()["error"]) == (
            503,
            "this call was made before: sign each call with a new nonce",
        )
        secret = directory.secret("flights", spec().run_id)
        hidden = bytes.fromhex(answer.json()["secret"])
        assert masked(KEY, nonce_of(submit["Authorization"]), hidden) == secret
        assert (await http.get("/jobs", headers=headers("GET", "/jobs"))).status_code == 200


@pytest.mark.parametrize("added", ["x", "", f"{SCHEME} 1:{NONCE}:x"])
@pytest.mark.parametrize("before", [True, False])
async def test_a_second_authorization_cannot_unmask_the_secret(added, before):
    """An intermediary adds a header, so that the check and the answer could use different headers."""
    async with served() as (http, directory):
        body = msgspec.json.encode(spec())
        given = list(headers("PUT", "/jobs/flights", body).items())
        second = [("authorization", added)]
        answer = await http.put("/jobs/flights", content=body, headers=second + given if before else given + second)
        assert answer.status_code == 400
        assert "one Authorization header" in answer.json()["error"]
        assert directory.jobs == {}


@pytest.mark.parametrize("name", ["X-Request-Id", "X-Storage"])
async def test_a_changed_header_is_refused(name):
    async with served() as (http, directory):
        body = msgspec.json.encode(spec())
        given = headers("PUT", "/jobs/flights", body)
        added = await http.put("/jobs/flights", content=body, headers={**given, name: "memory:"})
        given = headers("PUT", "/jobs/flights", body, more={name: "a"})
        second = [(name, "a"), *given.items(), (name, "b")]
        doubled = await http.put("/jobs/flights", content=body, headers=second)
        assert (added.status_code, doubled.status_code) == (401, 400)
        assert f"one {name} header" in doubled.json()["error"]
        assert directory.jobs == {}


async def test_a_changed_call_is_refused_and_does_nothing():
    async with served() as (http, directory):
        body = msgspec.json.encode(spec())
        changed = await http.put("/jobs/flights", content=body + b" ", headers=headers("PUT", "/jobs/flights", body))
        elsewhere = await http.put("/jobs/flights?x=1", content=body, headers=headers("PUT", "/jobs/flights", body))
        old = await http.get("/jobs", headers=headers("GET", "/jobs", time_ms=now_ms() - 2 * WINDOW_MS))
        assert [answer.status_code for answer in (changed, elsewhere, old)] == [401, 401, 503]
        assert "this is not the daemon's token" in changed.json()["error"]
        assert "set the clocks of both hosts" in old.json()["error"]
        assert directory.jobs == {}


@pytest.mark.slow
def test_a_step_of_the_drivers_clock_is_no_refusal_of_the_job(tmp_path, monkeypatch):
    """`Unavailable` is tried again; `InvalidJob` would end a healthy job."""
    with EmbeddedCoordinator(str(tmp_path / "checkpoints")) as daemon:
        daemon.wait_ready(60)
        with monkeypatch.context() as stepped:
            stepped.setattr(time, "time", lambda: now_ms() / 1000 + 2 * WINDOW_MS / 1000)
            with pytest.raises(
                Unavailable, match="more than 5 minutes before or after the daemon's time: set the clocks"
            ):
                daemon.client.jobs()
        assert daemon.client.jobs() == []


async def test_a_body_without_end_is_not_collected():
    """G5"""
    read = 0

    async def pieces():
        nonlocal read
        for _ in range(64):
            read += MAX_BODY_BYTES // 4
            yield b" " * (MAX_BODY_BYTES // 4)

    async with served() as (http, directory):
        answer = await http.put("/jobs/flights", content=pieces(), headers=headers("PUT", "/jobs/flights"))
        assert answer.status_code == 401
        assert read <= 2 * MAX_BODY_BYTES
        assert directory.jobs == {}
