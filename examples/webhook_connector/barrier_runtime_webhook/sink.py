"""Sink of JSON lines for an HTTP endpoint that ignores known idempotency keys.

flow = ….sink("rows", WebhookSink("https://example.org/rows"))
"""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.types as kinds

from barrier_runtime import InvalidJob, Unavailable, WriteAheadSink
from barrier_runtime.connectors.sink_bases.write_ahead_committable import DeliveryToken

_ANSWER_S = 30
_TRY_AGAIN = (408, 425, 429)  # retried, as is every server error (5xx)


class WebhookSink(WriteAheadSink):
    """Sends one POST per subtask and checkpoint to the endpoint `url`.

    Columns are integers, texts or booleans; other types are refused with the remedy."""

    kind: ClassVar[str] = "webhook"

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = url

    def settings(self) -> dict[str, Any]:
        return {"url": self.url}

    def target(self) -> str:
        return self.url

    def check_columns(self, schema: pa.Schema, where: str) -> None:
        for field in schema:
            if not any(fits(field.type) for fits in (kinds.is_integer, kinds.is_string, kinds.is_boolean)):
                raise InvalidJob(
                    f"{where}: column {field.name!r} is {field.type}: make it an integer, a text or a boolean, as with "
                    "select()"
                )

    def check_schema(self, schema: pa.Schema) -> None:
        self.check_columns(schema, self._where)

    def deliver(self, token: DeliveryToken, batches: Iterator[pa.RecordBatch]) -> None:
        lines = "".join(json.dumps(row) + "\n" for batch in batches for row in batch.to_pylist())
        headers = {"Content-Type": "application/jsonl", "Idempotency-Key": token.text}
        request = urllib.request.Request(self.url, lines.encode(), headers)
        try:
            urllib.request.urlopen(request, timeout=_ANSWER_S).close()
        except urllib.error.HTTPError as error:
            said = f"{self._where}: {self.url} answered {error.code} {error.reason}"
            if error.code >= 500 or error.code in _TRY_AGAIN:
                raise Unavailable(f"{said}. It is tried again") from error
            raise InvalidJob(f"{said}. Correct the URL, or the rows before the sink") from error
        except OSError as error:
            raise Unavailable(f"{self._where}: {self.url} cannot be reached: {error}. It is tried again") from error
