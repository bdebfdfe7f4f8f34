"""Kinesis client of the source. Only this file imports boto3.

botocore's retries are off: the caller decides how long to retry.
"""

import datetime
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import cache
from typing import Any, TypeVar

import msgspec

from barrier_runtime.connectors.source import Split
from barrier_runtime.state.errors import BarrierRuntimeError, InvalidJob, Unavailable, missing_extra
from barrier_runtime.state.outside_errors import must_be_mended, told
from barrier_runtime.state.store.s3.aws import refuse_cut_answers


class KinesisSplit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A shard, from records that arrived at `from_ms` (None: all) to the first after `until_ms` (None: no end)."""

    shard: str
    from_ms: int | None = None
    until_ms: int | None = None

    def split(self) -> Split:
        return Split(self.shard, msgspec.json.encode(self))


SPLIT = msgspec.json.Decoder(KinesisSplit)


class KinesisPosition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Position in a shard: `after` is the sequence number of the last emitted record.

    All records that had arrived by `complete_ms` (a whole minute) were emitted.
    """

    after: str | None = None
    complete_ms: int | None = None


POSITION = msgspec.json.Decoder(KinesisPosition)


def owner(shard: str, parallelism: int) -> int:
    number = shard.rpartition("-")[2]
    return (int(number) if number.isdigit() else zlib.crc32(shard.encode())) % parallelism


def shown_time(ms: int) -> str:
    return f"{datetime.datetime.fromtimestamp(ms / 1000, datetime.timezone.utc):%Y-%m-%d %H:%M} UTC"


MOST_RECORDS = 10_000
_TIMEOUT_S = 10.0
_THROTTLED = {"ProvisionedThroughputExceededException", "LimitExceededException", "KMSThrottlingException"}
_REFUSED = {
    "AccessDeniedException",
    "UnrecognizedClientException",
    "InvalidSignatureException",
    "ExpiredTokenException",
}
_REFUSED |= {"IncompleteSignatureException", "MissingAuthenticationTokenException", "KMSAccessDeniedException"}
_NO_CREDENTIALS = {"NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError"}
_KEYS = {"KMSDisabledException", "KMSNotFoundException", "KMSOptInRequired", "KMSInvalidStateException"}
_REFUSED |= {"InvalidAccessKeyId", "InvalidClientTokenId", "SignatureDoesNotMatch", *_KEYS}
_WRONG_SETTINGS = {
    "InvalidArgumentException",
    "ValidationException",
    "NoRegionError",
    "InvalidRegionError",
    "ProfileNotFound",
    "ParamValidationError",
}

_MAKING = threading.Lock()  # boto3 makes clients on one thread at a time

T = TypeVar("T")


class IteratorExpired(BarrierRuntimeError):
    """An iterator expired after five minutes; request another."""


class Throttled(Unavailable):
    """Limit of requests or bytes; a later retry succeeds."""


@dataclass(frozen=True)
class KinesisRecord:
    """`arrived_ms`: arrival at Kinesis, since 1970."""

    sequence: str
    key: str
    data: bytes
    arrived_ms: int


@dataclass(frozen=True)
class ShardAnswer:
    """`iterator`: of the next request; None at the end of a closed shard.
    `behind_ms`: from the answer's end to the newest record of the shard; 0: no record is left.
    """

    records: Sequence[KinesisRecord]
    iterator: str | None
    behind_ms: int


class KinesisClient:
    """Client of a stream; travels to the slots without the connection.

    Calls may block for ten seconds, and raise `Unavailable`, or `InvalidJob` if an operator must act.
    """

    def __init__(self, stream: str, region: str | None, endpoint: str | None, where: str) -> None:
        self.stream = stream
        self._region = region
        self._endpoint = endpoint
        self._where = where
        self._made: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_made": None}

    def shards(self) -> list[str]:
        found: list[str] = []
        more: dict[str, Any] = {"StreamName": self.stream}
        while more:
            answer = self._asked(lambda client, more=more: client.list_shards(**more))  # type: ignore[misc]
            found += [shard["ShardId"] for shard in answer["Shards"]]
            more = {"NextToken": answer["NextToken"]} if answer.get("NextToken") else {}
        return sorted(found)

    def retention_ms(self) -> int:
        return int(self._summary()["StreamDescriptionSummary"]["RetentionPeriodHours"]) * 3_600_000

    def now_ms(self) -> tuple[int, int]:
        """Least and greatest possible time of the service, whose clock dates the records.
        The own clock counts if both clocks show the same second.
        """
        own = time.time_ns() // 1_000_000
        date = self._summary().get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
        second = own if date is None else round(parsedate_to_datetime(date).timestamp()) * 1000
        return (own, own) if date is None or second <= own <= second + 999 else (second, second + 999)

    def _summary(self) -> Any:
        return self._asked(lambda client: client.describe_stream_summary(StreamName=self.stream))

    def iterator(self, split: KinesisSplit, after: str | None) -> str:
        place: dict[str, Any] = {"ShardIteratorType": "TRIM_HORIZON"}
        if after is not None:
            place = {"ShardIteratorType": "AFTER_SEQUENCE_NUMBER", "StartingSequenceNumber": after}
        elif split.from_ms is not None:
            at = datetime.datetime.fromtimestamp(split.from_ms / 1000, datetime.timezone.utc)
            place = {"ShardIteratorType": "AT_TIMESTAMP", "Timestamp": at}
        answer = self._asked(
            lambda client: client.get_shard_iterator(StreamName=self.stream, ShardId=split.shard, **place)
        )
        return str(answer["ShardIterator"])

    def records(self, iterator: str) -> ShardAnswer:
        """Also raises `IteratorExpired` and `Throttled`."""
        answer = self._asked(lambda client: client.get_records(ShardIterator=iterator, Limit=MOST_RECORDS))
        records = [
            KinesisRecord(
                each["SequenceNumber"],
                each["PartitionKey"],
                each["Data"],
                round(each["ApproximateArrivalTimestamp"].timestamp() * 1000),
            )
            for each in answer["Records"]
        ]
        return ShardAnswer(records, answer.get("NextShardIterator"), int(answer.get("MillisBehindLatest") or 0))

    def _asked(self, ask: Callable[[Any], T]) -> T:
        try:
            with _MAKING:
                if self._made is None:
                    self._made = _client(self._region, self._endpoint)
            return ask(self._made)
        except InvalidJob:
            raise
        except Exception as error:
            raise self._trouble(error) from error

    def _trouble(self, error: Exception) -> BarrierRuntimeError:
        response = getattr(error, "response", None) or {}
        code = str(response.get("Error", {}).get("Code", "")) or type(error).__name__
        place = f"{self._where}, stream {self.stream!r}"
        if code == "ExpiredIteratorException":
            return IteratorExpired(f"{place}: an iterator expired")
        if code in _THROTTLED:
            return Throttled(f"{place}: Kinesis limits requests ({code})")
        if code == "ResourceNotFoundException":
            return InvalidJob(f"{place}: it, or a shard of it, does not exist: correct stream= or region=")
        if code in _REFUSED:
            return InvalidJob(
                f"{place}: Kinesis refuses access ({code}): give the credentials of driver and slots the permissions "
                "kinesis:ListShards, DescribeStreamSummary, GetShardIterator and GetRecords"
            )
        if code in _NO_CREDENTIALS:
            return InvalidJob(f"{place}: no AWS credentials: set them up for boto3 (environment, ~/.aws or role)")
        if code in _WRONG_SETTINGS:
            return InvalidJob(f"{place}: boto3 refused it: {error}: correct stream=, region= or the AWS settings")
        if must_be_mended(error):
            return told(error, f"{place}: reading failed", "Correct stream=, region= or the AWS settings")
        return Unavailable(f"{place}: Kinesis did not answer ({code}); it is asked again")


def _client(region: str | None, endpoint: str | None) -> Any:
    try:
        import boto3  # noqa: F401
        from botocore.config import Config
    except ImportError as error:
        raise missing_extra("Kinesis", "kinesis", error) from None
    config = Config(
        retries={"total_max_attempts": 1, "mode": "standard"},
        connect_timeout=_TIMEOUT_S,
        read_timeout=_TIMEOUT_S,
        max_pool_connections=64,
        tcp_keepalive=True,
    )
    client = _session().client("kinesis", region_name=region, endpoint_url=endpoint, config=config)
    refuse_cut_answers(client)
    return client


@cache
def _session() -> Any:
    """Each session reads a megabyte of service descriptions."""
    import boto3

    return boto3.session.Session()
