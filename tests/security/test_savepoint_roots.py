"""Savepoints are written only below the folders that the operator allows."""

import uuid
from pathlib import Path

import httpx
import msgspec
import pytest
from command_line import run_here
from coordinator_world import spec
from living_daemon import living_daemon

from barrier_runtime.coordinator.client.rest_token import Token, daemon_key
from barrier_runtime.coordinator.server.daemon import main
from barrier_runtime.coordinator.server.jobs import JobDirectory
from barrier_runtime.coordinator.server.rest import ControlAddress, application
from barrier_runtime.state.store.memory import MemoryStore
from barrier_runtime.state.store.open import lies_within

SECRET = "7" * 64
HEADERS = {"Authorization": f"Bearer {SECRET}", "X-Barrier-Runtime": "1", "Content-Type": "application/json"}


@pytest.mark.parametrize(
    ("url", "root", "allowed"),
    [
        ("s3://b/saves", "s3://b/saves", True),
        ("s3://b/saves/june", "s3://b/saves/", True),
        ("s3a://b/saves/june", "s3://b/saves", True),
        ("s3://b/saves-of-others", "s3://b/saves", False),
        ("s3://b", "s3://b/saves", False),
        ("s3://other/saves", "s3://b/saves", False),
        ("gs://b/saves/x", "s3://b/saves", False),
        ("s3://b/saves/x?endpoint=http://evil:1", "s3://b/saves", False),
        ("s3://b/saves/x?endpoint=http://minio:9000", "s3://b/saves?endpoint=http://minio:9000", True),
        ("webhdfs://n:9870/saves/../etc", "webhdfs://n:9870/saves", False),
        ("webhdfs://n:9870/saves/%2e%2e/etc", "webhdfs://n:9870/saves", False),
        ("/srv/saves/june", "/srv/saves", True),
        ("file:///srv/saves/june", "/srv/saves", True),
        ("/srv/saves/../other", "/srv/saves", False),
        ("file:///srv/saves/%2e%2e/other", "/srv/saves", False),
        ("saves", "/srv/saves", False),
    ],
)
def test_a_url_lies_within_a_root_or_not(url: str, root: str, allowed: bool) -> None:
    assert lies_within(url, root) is allowed


def test_a_link_of_a_folder_is_followed(tmp_path: Path) -> None:
    (tmp_path / "saves").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "saves" / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "named").symlink_to(tmp_path / "saves")
    assert not lies_within(str(tmp_path / "saves" / "link" / "june"), str(tmp_path / "saves"))
    assert lies_within(str(tmp_path / "saves" / "june"), str(tmp_path / "named"))


@pytest.mark.parametrize("route", ["savepoints", "stop"])
async def test_a_savepoint_elsewhere_is_refused_and_creates_no_folder(tmp_path: Path, route: str) -> None:
    """G4"""
    jobs = JobDirectory(MemoryStore(), daemon_key=daemon_key(SECRET), leader="a", host="h")
    allowed, other = tmp_path / "allowed", tmp_path / "other"
    control, token = ControlAddress("127.0.0.1", 7), Token("operator", SECRET.encode())
    app = application(jobs, control, token, 42, savepoint_roots=[str(allowed)])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://d", headers=HEADERS) as client:
        await client.put("/jobs/flights", content=msgspec.json.encode(spec()))

        async def ask(folder: Path) -> httpx.Response:
            asked = {"id": str(uuid.uuid4()), "url": str(folder)}
            content = asked if route == "savepoints" else {"mode": "checkpoint", "savepoint": asked}
            return await client.post(f"/jobs/flights/{route}", json=content)

        refused = await ask(other)
        assert refused.status_code == 400
        assert "only below" in refused.json()["error"]
        assert "--savepoint-roots" in refused.json()["error"]
        assert not other.exists()
        assert (await ask(allowed / "june")).status_code != 400
    await jobs.close()


def test_a_daemon_refuses_a_root_that_leads_elsewhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    token = tmp_path / "daemon.token"
    token.write_text(SECRET)
    token.chmod(0o600)
    wrong = "webhdfs://n:9870/saves/../etc"
    given = ["--storage", str(tmp_path / "store"), "--token-file", str(token), "--savepoint-roots", wrong]
    assert main(given) == 2


@pytest.mark.slow
@pytest.mark.parametrize("command", [("savepoint", "flights", "--to"), ("stop", "flights", "--savepoint")])
def test_commands_print_the_refusal_and_create_no_folder(tmp_path: Path, command: tuple[str, ...]) -> None:
    allowed, other = tmp_path / "allowed", tmp_path / "other"
    with living_daemon(tmp_path, "--savepoint-roots", str(allowed)) as daemon:
        daemon.client.submit(spec())
        where = ["--coordinator", daemon.url, "--token-file", str(tmp_path / "operator.token")]
        done = run_here(*command, str(other), *where, cwd=tmp_path)
    assert done.returncode == 2
    assert f"only below {allowed}" in done.stderr
    assert "Traceback" not in done.stderr
    assert not other.exists()
