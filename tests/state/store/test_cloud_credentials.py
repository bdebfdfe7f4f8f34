"""Errors for missing and temporarily unavailable credentials."""

import http.server
import os
import threading
from functools import partial
from pathlib import Path
from typing import Any

import obstore
import pytest

from barrier_runtime.state.errors import InvalidJob, Unavailable
from barrier_runtime.state.store import clouds
from barrier_runtime.state.store.object_store import ObjectNotFound, PutOutcome
from barrier_runtime.state.store.open import open_store
from barrier_runtime.state.store.probe import probe_conditional_put
from barrier_runtime.state.store.retrying import RetryBudget

PLACES = {"gs": "gs://lake/jobs", "abfss": "abfss://lake@account.dfs.core.windows.net/jobs"}
WANTED = {"gs": "GOOGLE_APPLICATION_CREDENTIALS", "abfss": "AZURE_STORAGE_ACCOUNT_KEY"}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clouds, "RetryBudget", partial(RetryBudget, first_wait_s=0.0))
    for name in ("ACCOUNT_KEY", "SAS_TOKEN"):
        monkeypatch.delenv(f"AZURE_STORAGE_{name}", raising=False)


def no_token(*_: Any, **__: Any) -> Any:
    raise obstore.exceptions.GenericError("Generic error: Error performing token request: no route\n\nDebug source: …")


def test_a_machine_without_identity_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is the client's own: the service that issues tokens does not answer."""
    monkeypatch.setenv("AZURE_MSI_ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(InvalidJob, match="found no credentials: set AZURE_STORAGE_ACCOUNT_KEY"):
        open_store(PLACES["abfss"]).get("a")


@pytest.mark.slow
@pytest.mark.parametrize("cloud", PLACES)
def test_no_credentials_is_the_answer_of_the_first_request_whatever_it_is(
    cloud: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("put", "get", "list", "delete"):
        monkeypatch.setattr(obstore, name, no_token)
    with pytest.raises(InvalidJob, match=rf"cannot hold checkpoints: .*found no credentials: set {WANTED[cloud]}"):
        probe_conditional_put(open_store(PLACES[cloud]), "probe")
    for request in ("get", "put", "list"):
        store: Any = open_store(PLACES[cloud])
        with pytest.raises(InvalidJob, match=rf"{PLACES[cloud]}.* found no credentials: set {WANTED[cloud]}"):
            list(getattr(store, request)("a", *([b"x"] if request == "put" else [])))


def test_an_identity_that_is_away_for_a_moment_is_waited_for_and_nobodys_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens are renewed while a job runs: an earlier token proves that credentials exist."""
    store = open_store(PLACES["gs"])
    monkeypatch.setattr(obstore, "put", lambda *_, **__: None)
    assert store.put_if_absent("a", b"x") is PutOutcome.CREATED
    monkeypatch.setattr(obstore, "put", no_token)
    assert store.put_if_absent("b", b"x") is PutOutcome.UNKNOWN
    with pytest.raises(Unavailable, match=r"got no access token; it is tried again \(gave up after 8 attempts"):
        store.put("b", b"x")


@pytest.mark.slow
@pytest.mark.parametrize("client", ["obstore", "boto3"])
def test_without_aws_credentials_the_variables_are_named(
    client: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    with pytest.raises(InvalidJob, match=r"s3://lake/jobs/a found no AWS credentials: set AWS_ACCESS_KEY_ID and"):
        open_store(f"s3://lake/jobs?endpoint=http://127.0.0.1:1&client={client}").get("a")


def test_a_gateway_of_google_cloud_storage_is_asked_without_credentials() -> None:
    """The client takes `endpoint=` from the file of a service account."""
    asked = []

    class Nothing(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(404)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Nothing) as gateway:
        thread = threading.Thread(target=gateway.serve_forever)
        thread.start()
        try:
            with pytest.raises(ObjectNotFound, match="no object gs://lake/jobs/a"):
                open_store(f"gs://lake/jobs?endpoint=http://127.0.0.1:{gateway.server_port}").get("a")
        finally:
            gateway.shutdown()
            thread.join()
    assert asked == ["/lake/jobs%2Fa"]
