"""A connector of another package is found by the entry point, and the sink gives the built-in guarantees."""

import importlib
import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from barrier_runtime import Dataflow, InvalidJob
from barrier_runtime.connectors.registry import CONNECTORS, all_connectors, sinks_by_kind
from barrier_runtime.runtime.sinks.pending_set import make_sink
from barrier_runtime.testing import certify

PACKAGE = Path(__file__).resolve().parents[3] / "examples" / "webhook_connector"
POINTS = "[barrier_runtime.connectors]\n"


class Endpoint(ThreadingHTTPServer):
    """Takes rows as JSON lines, once per idempotency key. `answers`: codes of the next answers, instead of 200."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}/rows"
        self.rows: list[dict[str, Any]] = []
        self.answers: list[int] = []
        self._keys: set[str] = set()
        self._lock = threading.Lock()

    def take(self, key: str, body: bytes) -> int:
        with self._lock:
            if self.answers:
                return self.answers.pop(0)
            if key not in self._keys:
                self._keys.add(key)
                self.rows += map(json.loads, body.splitlines())
            return 200

    def forget(self) -> None:
        self.rows, self._keys = [], set()


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, Endpoint)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(self.server.take(self.headers["Idempotency-Key"], body))
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Does nothing, so that the terminal stays clean."""


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def _install(folder: Path, name: str, entry_points: str) -> None:
    """Writes the metadata that an installer writes for a package."""
    info = folder / f"{name}-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text(POINTS + entry_points)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of installed packages, with the example's."""
    table = (PACKAGE / "pyproject.toml").read_text().partition('."barrier_runtime.connectors"]\n')[2]
    _install(tmp_path, "barrier_runtime_webhook", table.partition("\n")[0].replace('"', ""))
    monkeypatch.syspath_prepend(str(PACKAGE))
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    yield tmp_path
    for module in [each for each in sys.modules if each.startswith("barrier_runtime_webhook")]:
        del sys.modules[module]


def _sink(endpoint: Endpoint) -> Any:
    return importlib.import_module("barrier_runtime_webhook.sink").WebhookSink(endpoint.url)


def test_a_connector_of_another_package_is_found_behind_ours(site: Path, endpoint: Endpoint) -> None:
    assert [each.name for each in all_connectors()] == [*(each.name for each in CONNECTORS), "webhook"]
    sink = make_sink("webhook", {"url": endpoint.url})
    assert type(sink).__module__ == "barrier_runtime_webhook.sink"
    assert sink.settings() == {"url": endpoint.url}


@pytest.mark.slow
def test_a_flow_writes_through_a_sink_of_another_package(site: Path, endpoint: Endpoint) -> None:
    """Answers that request a retry neither lose nor duplicate rows."""
    endpoint.answers = [503, 429]
    flow = Dataflow("numbers")
    flow.rate("ticks", 10_000, 200).select(["value"]).sink("numbers", _sink(endpoint))
    flow.run_local(parallelism=2, checkpoint_interval=0.01)
    assert sorted(row["value"] for row in endpoint.rows) == list(range(200))


def test_a_column_without_a_type_is_refused_when_the_flow_is_written(site: Path, endpoint: Endpoint) -> None:
    with pytest.raises(InvalidJob, match=r"column 'intended_at' is timestamp.*: make it an integer"):
        Dataflow("numbers").rate("ticks", 10, 20).sink("numbers", _sink(endpoint))


@pytest.mark.slow
def test_the_sink_of_the_example_is_certified(site: Path, endpoint: Endpoint) -> None:
    certify(
        lambda: _sink(endpoint),
        lambda: list(endpoint.rows),
        make_row=lambda number: {"id": number, "key": f"k{number % 3}"},
        schema=pa.schema([("id", pa.int64()), ("key", pa.string())]),
        scenarios=40,
        inside=20,
        seeds=range(4),
        reset=endpoint.forget,
    )


@pytest.mark.parametrize(
    ("entry_point", "told"),
    [
        (
            "broken = no_such_module:CONNECTOR",
            "'broken' of the package other cannot be loaded: No module named",
        ),
        ("broken = json:loads", "entry point 'broken' of the package other is .*: it has to name a Connector"),
    ],
)
def test_a_wrong_entry_point_is_told_with_its_package(site: Path, entry_point: str, told: str) -> None:
    _install(site, "other", entry_point)
    with pytest.raises(InvalidJob, match=told):
        all_connectors()


def test_two_sinks_of_one_kind_are_refused(site: Path) -> None:
    (site / "second.py").write_text(
        "from barrier_runtime.connectors.registry import *\n"
        "CONNECTOR = Connector('second', sinks=(Sinks((PublicClass('', 'S', 'webhook', 'second'),), 'x', 'y'),))\n"
    )
    _install(site, "second", "second = second:CONNECTOR")
    with pytest.raises(InvalidJob, match="have the same kind 'webhook': uninstall the package of one"):
        sinks_by_kind()
    sys.modules.pop("second")
