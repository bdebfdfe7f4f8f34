"""Equal behaviour of obstore and boto3: endpoints, regions, credentials, keys, partial answers."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from barrier_runtime.state.errors import InvalidJob, Unavailable
from barrier_runtime.state.store.object_store import PutOutcome, copy_object
from barrier_runtime.state.store.open import open_store
from barrier_runtime.state.store.retrying import RetryBudget
from barrier_runtime.state.store.s3.aws import AwsCredentials, place_of
from barrier_runtime.state.store.s3.by_boto3 import S3Store
from barrier_runtime.state.store.s3.by_obstore import ObstoreS3Store
from barrier_runtime.state.store.use import counts_of, with_own_use
from tests.state.store.s3_script import Script

QUICK = RetryBudget(first_wait_s=0.001, longest_wait_s=0.001)


@pytest.fixture
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Removes this machine's AWS settings; the path of an empty profiles file."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    return tmp_path / "config"


@pytest.mark.parametrize(
    ("bucket", "settings", "endpoint", "place"),
    [
        ("lake", {}, None, ("https://lake.s3.amazonaws.com", "us-east-1", True)),
        (
            *("lake", {"AWS_DEFAULT_REGION": "eu-west-1"}, None),
            ("https://lake.s3.eu-west-1.amazonaws.com", "eu-west-1", True),
        ),
        (
            *("my.lake", {"AWS_DEFAULT_REGION": "eu-west-1"}, None),
            ("https://s3.eu-west-1.amazonaws.com", "eu-west-1", False),
        ),
        (
            *("lake", {"AWS_DEFAULT_REGION": "cn-north-1"}, None),
            ("https://lake.s3.cn-north-1.amazonaws.com.cn", "cn-north-1", True),
        ),
        (
            *("lake", {"AWS_DEFAULT_REGION": "us-west-2", "AWS_USE_FIPS_ENDPOINT": "true"}, None),
            ("https://lake.s3-fips.us-west-2.amazonaws.com", "us-west-2", True),
        ),
        (
            *("lake", {"AWS_DEFAULT_REGION": "us-west-2"}, "http://host:9000/gate/way/"),
            ("http://host:9000/gate/way", "us-west-2", False),
        ),
        (
            *("lake", {"AWS_ENDPOINT_URL_S3": "https://minio:9000", "AWS_DEFAULT_REGION": "here"}, None),
            ("https://minio:9000", "here", False),
        ),
    ],
)
def test_requests_go_where_boto3_would_send_them(
    no_settings: Path,
    monkeypatch: pytest.MonkeyPatch,
    bucket: str,
    settings: dict[str, str],
    endpoint: str | None,
    place: tuple[str, str, bool],
) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    found = place_of(bucket, endpoint)
    assert (found.endpoint, found.region, found.virtual_host) == place


def test_region_and_endpoint_come_from_the_profile(no_settings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_settings.write_text(
        "[profile own]\nregion = eu-north-1\nservices = mine\n[services mine]\ns3 =\n  endpoint_url = http://gate:1\n"
    )
    monkeypatch.setenv("AWS_PROFILE", "own")
    found = place_of("lake", None)
    assert (found.endpoint, found.region) == ("http://gate:1", "eu-north-1")


@pytest.mark.slow
def test_a_bundle_of_authorities_and_a_directory_bucket_are_left_to_boto3(
    no_settings: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert isinstance(open_store("s3://lake/x"), ObstoreS3Store)
    assert isinstance(open_store("s3://lake--use1-az4--x-s3/x"), S3Store)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "own.pem"))
    assert isinstance(open_store("s3://lake/x"), S3Store)
    assert isinstance(open_store("s3://lake/x?endpoint=http://here:1"), ObstoreS3Store)
    with pytest.raises(InvalidJob, match="AWS_CA_BUNDLE, or ca_bundle of the profile, is understood by boto3 only"):
        open_store("s3://lake/x?client=obstore")


def test_variables_that_boto3_does_not_know_change_nothing(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    ignored = {
        "AWS_SKIP_SIGNATURE": "true",
        "AWS_ENDPOINT": "http://127.0.0.1:9",
        "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:9",
        "AWS_CONDITIONAL_PUT": "disabled",
        "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true",
        "AWS_BUCKET": "other",
        "AWS_REGION": "us-gov-west-1",
    }
    for name, value in ignored.items():
        monkeypatch.setenv(name, value)
    script.answers = [(412, "PreconditionFailed")]
    store = open_store(f"s3://bucket/jobs?endpoint={script.endpoint}")
    assert store.put_if_absent("a", b"x") is PutOutcome.EXISTS
    [(method, path, headers)] = script.requests
    assert (method, path) == ("PUT", "/bucket/jobs/a")
    assert "canary-key-id/" in headers["authorization"]
    assert "/us-east-1/s3/" in headers["authorization"]


@pytest.mark.slow
def test_a_proxy_of_the_environment_is_used(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", script.endpoint)
    script.answers = [(200, "<rows/>")]
    for client in ("obstore", "boto3"):
        store = open_store(f"s3://bucket/jobs?endpoint=http://store.invalid:9000&client={client}")
        assert store.get("a") == b"<rows/>"
        assert script.requests[-1][1] == "http://store.invalid:9000/bucket/jobs/a"


@pytest.mark.slow
def test_a_bucket_in_another_region_is_found_and_asked_there(script: Script) -> None:
    script.headers = {"x-amz-bucket-region": "eu-west-3"}
    script.answers = [(301, "PermanentRedirect"), (200, "")]
    store = ObstoreS3Store("bucket", "jobs", script.endpoint, QUICK)
    assert store.put_if_absent("a", b"x") is PutOutcome.CREATED
    asked = [(method, headers["authorization"].split("/")[2]) for method, _, headers in script.requests]
    assert asked == [("PUT", "us-east-1"), ("HEAD", "us-east-1"), ("PUT", "eu-west-3")]
    store.put("b", b"x")
    assert "/eu-west-3/" in script.requests[-1][2]["authorization"]


@pytest.mark.slow
def test_a_redirect_that_names_no_region_says_what_to_set(script: Script) -> None:
    script.answers = [(301, "PermanentRedirect")]
    store = ObstoreS3Store("bucket", "jobs", script.endpoint, QUICK)
    with pytest.raises(InvalidJob, match="in another region than us-east-1: set AWS_DEFAULT_REGION"):
        store.put("a", b"x")


@pytest.mark.parametrize("operation", ["put", "put_if_absent"])
def test_expired_credentials_are_read_again(
    script: Script, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, operation: str
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    file = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    profile = "[default]\naws_access_key_id = {}\naws_secret_access_key = x\naws_session_token = y\n"
    file.write_text(profile.format("old-key"))
    store = ObstoreS3Store("bucket", "jobs", script.endpoint, QUICK)
    store.put("first", b"x")
    file.write_text(profile.format("new-key"))
    script.answers = [(403, "ExpiredToken"), (200, "")]
    getattr(store, operation)("a", b"x")
    keys = [headers["authorization"].split("=")[1].split("/")[0] for _, _, headers in script.requests]
    assert keys == ["old-key", "old-key", "new-key"]


@pytest.mark.slow
@pytest.mark.parametrize("operation", ["put", "put_if_absent"])
def test_credentials_that_stay_expired_are_for_a_person(script: Script, operation: str) -> None:
    script.answers = [(403, "ExpiredToken")]
    store = ObstoreS3Store("bucket", "jobs", script.endpoint, QUICK)
    with pytest.raises(InvalidJob, match=r"is not allowed \(ExpiredToken\)"):
        getattr(store, operation)("a", b"x")
    assert len(script.requests) == 4


@pytest.mark.parametrize("client", ["obstore", "boto3"])
@pytest.mark.parametrize(
    ("status", "code", "remedy"),
    [
        (403, "RequestTimeTooSkewed", "clocks of this machine and of the store differ too much: set them"),
        (403, "QuotaExceeded", "the store has no room: delete objects, or raise the quota"),
        (400, "XMinioAdminBucketQuotaExceeded", "the store has no room: delete objects, or raise the quota"),
    ],
)
def test_wrong_clock_and_full_store_are_waited_for(
    script: Script, client: str, status: int, code: str, remedy: str
) -> None:
    """A clock jumps, or a quota is used up: permissions are right, and the job goes on once a person has helped."""
    make = ObstoreS3Store if client == "obstore" else S3Store
    store = make("bucket", f"jobs-{code}", script.endpoint, QUICK)
    script.answers = [(status, code), (200, "")]
    store.put("a", b"x")
    script.answers = [(status, code)]
    assert store.put_if_absent("b", b"x") is PutOutcome.UNKNOWN
    with pytest.raises(Unavailable, match=rf"\({code}\): .*{remedy}; it is tried again"):
        store.put("c", b"x")


def test_credentials_that_are_away_for_a_moment_are_waited_for(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    """The renewal fails because the role's service does not answer."""
    store = ObstoreS3Store("bucket", "away", script.endpoint, QUICK)
    store.put("first", b"x")

    def gone(self: AwsCredentials) -> dict[str, Any]:
        raise RuntimeError("no route to canary-role")

    monkeypatch.setattr(AwsCredentials, "__call__", gone)
    store._access.renew(store._client)
    with pytest.raises(
        Unavailable, match=r"got no credentials; it is tried again \(gave up after 8 attempts\)"
    ) as raised:
        store.put("a", b"x")
    assert "canary" not in str(raised.value)
    assert store.put_if_absent("a", b"x") is PutOutcome.UNKNOWN
    assert len(script.requests) == 1
    monkeypatch.undo()


@pytest.mark.slow
def test_both_clients_name_objects_alike(s3_url: Callable[[str], str]) -> None:
    url = s3_url("odd ü+&=~")
    quick, plain = open_store(url), open_store(f"{url}&client=boto3")
    assert quick.url == plain.url
    for key in ("a b", "ü/é", "50%", "a%2Fb", "#?&+=", "{}[]^`|\"<>'", "st*r", "~t", "…", "a:b@c,d;e$!()"):
        quick.put(key, key.encode())
        assert plain.get(key) == quick.get(key) == key.encode()
        plain.put(f"by boto3/{key}", b"x")
        assert quick.get(f"by boto3/{key}") == b"x"
    names = [info.key for info in plain.list("")]
    assert names == [info.key for info in quick.list("")]
    quick.delete(names)
    assert list(plain.list("")) == []


@pytest.mark.slow
def test_keys_that_obstore_cannot_name_do_not_hide_the_others(s3_url: Callable[[str], str], s3_endpoint: str) -> None:
    import boto3

    url = s3_url("x")
    client, bucket = boto3.client("s3", endpoint_url=s3_endpoint), url.split("/")[2]
    for key in ("x/a", "x//b", "x/./c", "x/folder/"):
        client.put_object(Bucket=bucket, Key=key, Body=b"")
    assert sorted(info.key for info in open_store(url).list("")) == ["./c", "/b", "a", "folder/"]


def test_a_store_that_is_opened_again_shares_client_and_connections(s3_url: Callable[[str], str]) -> None:
    url = s3_url("one")
    first, again, other = open_store(url), open_store(url), open_store(url.replace("/one", "/other"))
    assert first._client is again._client is other._client  # type: ignore[attr-defined]


@pytest.mark.slow
def test_requests_of_boto3_are_counted_with_those_of_obstore(s3_url: Callable[[str], str]) -> None:
    store = open_store(s3_url("counted"))
    own = with_own_use(store)
    own.put("a", b"abc")
    assert own.get("a") == b"abc"
    assert list(own.folders("")) == []  # type: ignore[attr-defined]
    assert own.put_if_absent("b", b"abcd") is PutOutcome.CREATED
    own.delete(["a"])
    counts = counts_of(own)
    assert (counts.writes, counts.reads, counts.sent_bytes, counts.received_bytes) == (3, 1, 7, 3)
    assert counts_of(store).writes == 0


@pytest.mark.slow
def test_an_object_is_copied_between_buckets_by_the_service(
    s3_url: Callable[[str], str], make_bucket: Callable[[str], None]
) -> None:
    source, url = open_store(s3_url("from")), s3_url("to")
    bucket = url.split("/")[2]
    make_bucket(f"{bucket}-other")
    targets = [open_store(url.replace(bucket, f"{bucket}-other") + more) for more in ("", "&client=boto3")]
    source.put("a", b"rows")
    for target in targets:
        with_own = with_own_use(source)
        copy_object(with_own, "a", target, "b")
        assert target.get("b") == b"rows"
        assert counts_of(with_own).reads == 0


def test_a_download_that_fails_leaves_no_file(script: Script, tmp_path: Path) -> None:
    script.answers = [(200, "<rows/>"), None]
    store = ObstoreS3Store("bucket", "jobs", script.endpoint, QUICK)
    store.get_file("a", tmp_path / "whole")
    assert (tmp_path / "whole").read_bytes() == b"<rows/>"
    with pytest.raises(Unavailable):
        store.get_file("a", tmp_path / "broken")
    assert not (tmp_path / "broken").exists()


def test_a_certificate_that_is_not_trusted_names_the_remedy() -> None:
    error = "HTTP error: error sending request\n\nDebug source: … InvalidCertificate(UnknownIssuer)"
    store = ObstoreS3Store("bucket", "jobs", "https://127.0.0.1:1", QUICK)
    trouble = store._trouble("get", "a", store._errors.GenericError(error))
    assert isinstance(trouble, InvalidJob)
    assert "set AWS_CA_BUNDLE to the file" in str(trouble)


@pytest.mark.slow
def test_an_upload_in_parts_that_fails_is_aborted(script: Script) -> None:
    begun = "<InitiateMultipartUploadResult><UploadId>U1</UploadId></InitiateMultipartUploadResult>"
    store, large = ObstoreS3Store("bucket", "jobs", script.endpoint, RetryBudget(attempts=1)), bytes(17 << 20)
    if not store._aborts_uploads:  # obstore for Python 3.10: boto3 sends the object in one put
        store.put("big", large)
        assert [(method, path) for method, path, _ in script.requests] == [("PUT", "/bucket/jobs/big")]
        return
    script.answers = [(200, begun), (500, "InternalError")]
    with pytest.raises(Unavailable, match="put of s3://bucket/jobs/big failed"):
        store.put("big", large)
    assert ("DELETE", "/bucket/jobs/big?uploadId=U1") in [(method, path) for method, path, _ in script.requests]


@pytest.mark.slow
def test_an_object_that_is_replaced_while_it_is_read_is_not_mixed(
    s3_url: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("barrier_runtime.state.store.clouds._PART_BYTES", 10)
    store = open_store(s3_url("replaced"))
    store.put("a", b"0" * 40)
    assert isinstance(store, ObstoreS3Store)
    parts = store._other_parts

    def overtaken(key: str, *rest: Any) -> None:
        store.put("a", b"1" * 40)
        parts(key, *rest)

    monkeypatch.setattr(store, "_other_parts", overtaken)
    with pytest.raises(Unavailable, match="was replaced while it was read in parts: read it again"):
        store.get("a")
