"""The daemon's log on standard error: plain lines or one JSON object per line. What looks like a secret is masked.

An answer to a request that met a defect says where (`place_of`); the stack is in the log.
"""

import logging
import sys
import traceback
from pathlib import Path

from barrier_runtime.coordinator.json_lines import JsonLines, Masked


def configure(log_format: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    lines = (
        JsonLines() if log_format == "json" else logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    )
    handler.setFormatter(Masked(lines))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    for chatty in ("asyncio", "uvicorn", "botocore", "boto3", "urllib3", "s3transfer"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


def place_of(error: Exception) -> str:
    """Its type and where it was raised, for whoever has only the answer. Its text may hold a secret."""
    at = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in {at.name} ({Path(at.filename).name}:{at.lineno})"
