"""An S3 endpoint that counts requests, for the number of requests of a checkpoint:

python -m benchmarks.counted_s3 9000
"""

import contextlib
import json
import os
import sys
import threading
import urllib.request
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from examples.servers.s3 import BUCKET, OneAtATime, S3Server, make_s3_server, moto_application

_COUNTS = "/-/requests"
_CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}


class Counting(OneAtATime):
    """Counts requests by method. A GET of `/-/requests` returns the counts and is not counted."""

    def __init__(self) -> None:
        super().__init__(moto_application())
        self._counts: Counter[str] = Counter()
        self._mine = threading.Lock()

    def __call__(self, environ: Any, start_response: Any) -> Iterable[bytes]:  # type: ignore[override]
        with self._mine:
            if environ["PATH_INFO"] == _COUNTS:
                start_response("200 OK", [("Content-Type", "application/json")])
                return [json.dumps(self._counts).encode()]
            self._counts[environ["REQUEST_METHOD"]] += 1
        return super().__call__(environ, start_response)


class CountedS3(S3Server):
    def command(self) -> list[str]:
        return [sys.executable, "-m", "benchmarks.counted_s3", str(self.port)]

    def ready(self) -> bool:
        return self.requests() >= 0

    def environment(self) -> dict[str, str]:
        return {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])}

    @property
    def for_clients(self) -> dict[str, str]:
        """Environment for clients of the endpoint."""
        return {**_CREDENTIALS, "AWS_ENDPOINT_URL": self.endpoint}

    def requests(self) -> int:
        """Requests of all kinds until now."""
        with urllib.request.urlopen(f"{self.endpoint}{_COUNTS}", timeout=5) as answer:
            return sum(json.load(answer).values())


@contextlib.contextmanager
def counted_s3() -> Iterator[CountedS3]:
    """A running endpoint with the bucket of `url`."""
    import boto3

    server = CountedS3()
    try:
        server.start()
        client = boto3.client(
            "s3",
            endpoint_url=server.endpoint,
            aws_access_key_id="test",
            aws_secret_access_key="test",
            region_name="us-east-1",
        )
        client.create_bucket(Bucket=BUCKET)
        yield server
    finally:
        server.close()


if __name__ == "__main__":
    make_s3_server(int(sys.argv[1]), Counting()).serve_forever()
