"""Fixtures of the security tests: the coordinator tests' world (real slots over TCP, a job description) and the files
of a small job.
"""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # doctor, living_daemon
sys.path.insert(0, str(Path(__file__).parents[1] / "coordinator"))  # coordinator_world, tcp_slot


@pytest.fixture(scope="session")
def ended_job(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., None]:
    """`ended_job(folder)`: copies the files of an ended small job into the folder. The job runs once per size."""
    from small_job import run_small_job

    kept: dict[tuple[tuple[str, int], ...], Path] = {}

    def put_into(folder: Path, **size: int) -> None:
        key = tuple(sorted(size.items()))
        if key not in kept:
            run_small_job(original := tmp_path_factory.mktemp("ended"), **size)
            kept[key] = original
        shutil.copytree(kept[key], folder, dirs_exist_ok=True)

    return put_into
