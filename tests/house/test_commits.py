"""Subjects of commits after the commit that added this file have at most 72 characters."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LONGEST = 72


def _git(*arguments: str) -> list[str]:
    command = ["git", "-c", f"safe.directory={ROOT}", *arguments]  # a checkout may belong to another user
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.splitlines()


def test_subjects_of_commits_have_at_most_72_characters() -> None:
    """A source archive has no history, and a shallow clone does not have all of it: nothing to check there."""
    if _git("rev-parse", "--is-shallow-repository") != ["false"]:
        return
    here = str(Path(__file__).resolve().relative_to(ROOT))
    added = _git("log", "--diff-filter=A", "--format=%H", "--", here)
    subjects = _git("log", "--no-merges", "--format=%s", f"{added[-1]}..HEAD") if added else []
    assert [subject for subject in subjects if len(subject) > LONGEST] == []
