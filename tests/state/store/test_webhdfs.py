"""Answers that `tests/ends/test_hdfs.py` cannot provoke from a real name node.

These are lost answers, and answers of a standby name node, of a starting name node, and of a gateway."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from barrier_runtime.state.errors import InvalidJob, Unavailable
from barrier_runtime.state.store import webhdfs
from barrier_runtime.state.store.object_store import PutOutcome
from barrier_runtime.state.store.open import open_store
from barrier_runtime.state.store.webhdfs import WebHdfsStore

Answer = tuple[int, bytes]


class Node(ThreadingHTTPServer):
    """Server with scripted answers per operation; the last answer repeats, CUT ends the connection."""

    daemon_threads = True

    def __init__(self, **answers: list[Answer]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers = {
            "LISTSTATUS": [(200, b'{"FileStatuses":{"FileStatus":[]}}')],
            "CREATE": [(307, b"")],
            "DATA": [(201, b"")],
            "RENAME": [(200, b"")],
            **answers,
        }
        self.asked: list[str] = []
        self.bodies: dict[str, list[bytes]] = {}
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    @property
    def place(self) -> str:
        return f"127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Node

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        query = parse_qs(urlsplit(self.path).query)
        operation = "DATA" if "data" in query else query["op"][0]
        self.server.asked.append(" ".join([operation, *query.get("renameoptions", [])]))
        if body:
            self.server.bodies.setdefault(operation, []).append(body)
        answers = self.server.answers[operation]
        status, said = answers.pop(0) if len(answers) > 1 else answers[0]
        if status == 0:
            return
        self.send_response(status)
        if status == 307:
            self.send_header("Location", f"http://{self.server.place}{self.path}&data=true")
        self.send_header("Content-Length", str(len(said) + (5 if operation == "DATA" and said == b"cut" else 0)))
        self.end_headers()
        self.wfile.write(said)

    do_GET = do_PUT = do_DELETE = _answer

    def log_message(self, format: str, *args: object) -> None:
        pass


CUT: Answer = (0, b"")


def refused(name: str, message: str = "no", status: int = 403) -> Answer:
    return status, json.dumps({"RemoteException": {"exception": name, "message": message}}).encode()


STARTS: Answer = (404, b"<html>Not Found</html>")


@pytest.fixture
def node() -> Iterator[Callable[..., Node]]:
    nodes: list[Node] = []

    def make(**answers: list[Answer]) -> Node:
        nodes.append(Node(**answers))
        return nodes[-1]

    yield make
    for each in nodes:
        each.shutdown()
        each.server_close()


def store_of(*nodes: Node) -> WebHdfsStore:
    store = open_store(f"webhdfs://{','.join(each.place for each in nodes)}/folder")
    assert isinstance(store, WebHdfsStore)
    return store


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhdfs, "_FIRST_WAIT_S", 0.001)


@pytest.mark.parametrize(
    ("answers", "outcome"),
    [
        ({}, PutOutcome.CREATED),
        ({"RENAME": [CUT]}, PutOutcome.UNKNOWN),
        ({"RENAME": [(500, b"?")]}, PutOutcome.UNKNOWN),
        ({"RENAME": [refused("RetriableException")]}, PutOutcome.UNKNOWN),
        ({"RENAME": [STARTS]}, PutOutcome.UNKNOWN),
        ({"DATA": [CUT]}, PutOutcome.UNKNOWN),
        ({"DATA": [refused("IOException", "no data node is left")]}, PutOutcome.UNKNOWN),
        ({"CREATE": [STARTS]}, PutOutcome.UNKNOWN),
        ({"RENAME": [refused("FileAlreadyExistsException")], "DELETE": [(200, b"")]}, PutOutcome.EXISTS),
        # The file that has the name may not be in the journal, and may then vanish.
        ({"RENAME": [refused("FileAlreadyExistsException")], "DELETE": [CUT]}, PutOutcome.UNKNOWN),
        ({"RENAME": [refused("FileAlreadyExistsException")], "DELETE": [(500, b"")]}, PutOutcome.UNKNOWN),
    ],
)
def test_a_lost_answer_is_unknown_and_the_rename_is_asked_for_once(
    node: Callable[..., Node], answers: dict[str, list[Answer]], outcome: PutOutcome
) -> None:
    """O1"""
    at = node(**answers)
    assert store_of(at).put_if_absent("log/1", b"mine") is outcome
    assert [asked for asked in at.asked if "RENAME" in asked] in ([], ["RENAME NONE"])


def test_the_folder_is_made_when_it_is_not_there_also_twice(node: Callable[..., Node]) -> None:
    absent = refused("FileNotFoundException", status=404)
    at = node(
        RENAME=[absent, absent, (200, b"")],
        GETFILESTATUS=[(200, b'{"FileStatus":{"length":4}}')],
        MKDIRS=[(200, b'{"boolean":true}')],
    )
    assert store_of(at).put_if_absent("log/1", b"mine") is PutOutcome.CREATED
    assert at.asked.count("MKDIRS") == 2


def test_the_active_name_node_is_found_and_asked_first_from_then_on(node: Callable[..., Node]) -> None:
    standby = [refused("StandbyException", "Operation category READ is not supported in state standby")]
    one = node(LISTSTATUS=standby, CREATE=standby, RENAME=standby)
    other = node()
    store = store_of(one, other)
    assert store.put_if_absent("log/1", b"mine") is PutOutcome.CREATED
    assert one.asked == ["LISTSTATUS"]
    assert store.url == f"webhdfs://{one.place},{other.place}/folder"
    one.shutdown()
    one.server_close()  # its port refuses connections: no request was sent, so the other node may be used
    assert store_of(one, other).put_if_absent("log/1", b"mine") is PutOutcome.CREATED


def test_a_name_node_on_standby_that_sends_to_a_data_node_is_left_for_the_other(
    node: Callable[..., Node], tmp_path: Path
) -> None:
    """A standby name node does so for creates; the data node's request to the name node is then refused."""
    standby = [refused("StandbyException", "Operation category WRITE is not supported in state standby")]
    one, other = (
        node(DATA=standby, OPEN=[(307, b"")]),
        node(DATA=[(201, b""), (201, b""), (200, b"content")], OPEN=[(307, b"")]),
    )
    assert store_of(one, other).put_if_absent("log/1", b"mine") is PutOutcome.CREATED
    assert one.asked == ["LISTSTATUS", "CREATE", "DATA"]
    (tmp_path / "file").write_bytes(b"content")
    store_of(one, other).put_file("file", tmp_path / "file")
    assert other.bodies["DATA"] == [b"mine", b"content"]
    assert store_of(one, other).get("file") == b"content"
    assert store_of(one, one).put_if_absent("log/1", b"mine") is PutOutcome.UNKNOWN


def test_what_was_sent_to_one_name_node_is_not_sent_to_the_other(node: Callable[..., Node]) -> None:
    one, other = node(RENAME=[CUT]), node()
    assert store_of(one, other).put_if_absent("log/1", b"mine") is PutOutcome.UNKNOWN
    assert other.asked == []


def test_a_gateway_that_knows_no_options_of_a_rename_is_refused(node: Callable[..., Node]) -> None:
    """HttpFS answers true or false, and executes the old rename, which moves a file *into* a folder."""
    with pytest.raises(InvalidJob, match="use the HTTP address of the name node itself"):
        store_of(node(RENAME=[(200, b'{"boolean":false}')])).put_if_absent("log/1", b"mine")


def test_a_read_that_broke_off_is_repeated(node: Callable[..., Node]) -> None:
    at = node(OPEN=[(307, b"")], DATA=[(200, b"cut"), STARTS, CUT, (200, b"content")])
    assert store_of(at).get("a") == b"content"


def test_a_name_node_that_starts_does_not_say_that_an_object_is_absent(
    node: Callable[..., Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhdfs, "_ATTEMPTS", 3)
    with pytest.raises(Unavailable, match=r"get of webhdfs://.*/folder/a failed .*404.*gave up after 3 attempts"):
        store_of(node(OPEN=[STARTS])).get("a")
    with pytest.raises(Unavailable, match="list of"):
        list(store_of(node(LISTSTATUS=[STARTS])).list("a/"))


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (
            refused("AccessControlException", "Permission denied: user=x\n\tat org"),
            r"\(Permission denied: user=x\): give",
        ),
        ((401, b"<html>"), "a cluster with Kerberos is not supported"),
    ],
)
def test_what_a_person_must_mend_is_told_at_once(node: Callable[..., Node], answer: Answer, text: str) -> None:
    at = node(CREATE=[answer])
    with pytest.raises(InvalidJob, match=text):
        store_of(at).put("a", b"x")
    assert at.asked.count("CREATE") == 1


@pytest.mark.parametrize(
    "url", ["webhdfs://host/x", "webhdfs:///x", "webhdfs://h:9870/x?endpoint=http://y", "webhdfs://h:1,/x"]
)
def test_urls_that_name_no_name_node_are_refused(url: str) -> None:
    with pytest.raises(InvalidJob, match="use webhdfs://namenode:9870/folder"):
        open_store(url)
