"""The daemon's log on standard error: plain lines or one JSON object per line. Never holds a secret."""

import logging
import sys

from barrier_runtime.coordinator.json_lines import JsonLines


def configure(log_format: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    if log_format == "json":
        handler.setFormatter(JsonLines())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    for chatty in ("asyncio", "uvicorn", "botocore", "boto3", "urllib3", "s3transfer"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
