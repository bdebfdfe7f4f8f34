"""The job whose stored files are in `9477866-inside.tar.xz`: so small that the log's records contain the manifests.

Works in the folder that BARRIER_STORED names.
"""

import os
from pathlib import Path

from stored_rows import SCHEMA

from barrier_runtime import Dataflow, JsonlSink, count, sum_

HERE = Path(os.environ["BARRIER_STORED"])

flow = Dataflow("small")
_pace = float(os.environ.get("BARRIER_STORED_PACE", "20000"))
_rows = flow.read_jsonl("fixed", str(HERE / "fixed"), schema=SCHEMA, pace=_pace)
_rows.key_by("k").aggregate("running", rows=count(), total=sum_("n")).sink("out", JsonlSink(str(HERE / "out")))
