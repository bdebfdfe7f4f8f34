"""A log whose records contain their manifests is restored, and keeps the objects that its records list.

The archive is the folder of a job, `small_program.py` with `retained=2`, that was killed with SIGKILL after eight
checkpoints: the last checkpoint was decided, and not all of its rows were visible.
"""

import json
import os
import runpy
from collections import Counter
from pathlib import Path
from unittest.mock import patch

import pytest
from stored_rows import rows

from barrier_runtime import committed_files
from barrier_runtime.coordinator.log.decision_log import complete_of
from barrier_runtime.coordinator.log.reader import read_log
from barrier_runtime.coordinator.maintenance.fsck_store import check_store
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.store.open import open_store
from barrier_runtime.state.store.paths import Paths
from barrier_runtime.state_tables.finding import find_checkpoint
from tests.unpacked import unpack

HERE = Path(__file__).resolve().parent
PER_KEY = Counter(row["k"] for row in rows("fixed"))


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    unpack(HERE / "9477866-inside.tar.xz", tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_its_records_hold_the_manifests_and_list_what_is_kept(job: Path) -> None:
    store = open_store(str(job / "checkpoints"))
    assert list(store.list("small/checkpoints/")) == []
    view = read_log(store, Paths("small"), kept=True)
    assert [complete_of(entry).checkpoint for entry in view.kept_entries] == [7, 8]
    assert find_checkpoint("checkpoints", "small", 7).manifest.checkpoint == 7
    with pytest.raises(InvalidJob, match="checkpoint 6 of job small is not kept any more"):
        find_checkpoint("checkpoints", "small", 6)
    [checked] = check_store(store, "small", 0, 0)
    assert (checked.report.damage, checked.report.verified) == ((), (7, 8))


@pytest.mark.slow
@pytest.mark.parametrize("parallelism", [2, 3])
def test_the_job_goes_on_from_it_exactly_once(job: Path, parallelism: int) -> None:
    with patch.dict(os.environ, {"BARRIER_STORED": "."}):
        flow = runpy.run_path(str(HERE / "small_program.py"))["flow"]
    flow.run_local(checkpoints="checkpoints", parallelism=parallelism, checkpoint_interval=0.2)
    files = [Path(url.removeprefix("file:")) for url in committed_files("out")]
    visible = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    found = sorted((row["k"], row["rows"]) for row in visible)
    assert found == [(key, number) for key in sorted(PER_KEY) for number in range(1, PER_KEY[key] + 1)]
