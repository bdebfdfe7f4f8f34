"""Counting of code lines, on texts and on this repository."""

import subprocess

from tests.house.lines import ROOT, code_lines, folders, revision, table, working_tree

SOURCE = b'''"""Docstring of a module,
with two lines."""

import io  # a comment after code

# a comment


class Point:
    x: int = 0
    """Docstring of a field."""

    def text(self) -> str:
        """Docstring."""
        return """first

last"""


def long(
    a: int,
) -> int: "docstring of a line"; return a
'''


def test_blank_lines_comments_and_docstrings_are_no_code() -> None:
    assert code_lines(SOURCE) == 9
    assert code_lines(b"") == 0
    assert code_lines(b'"""Docstring alone."""\n') == 0


def test_a_file_counts_for_its_package_and_folder() -> None:
    assert folders("state/store/s3/aws.py") == ("all", "state", "state/store/")
    assert folders("state/errors.py") == ("all", "state", "state/*.py")
    found = table(
        [("state/__init__.py", b"a = 1\n"), ("state/store/__init__.py", b""), ("state/store/s.py", b"b\nc\n")]
    )
    assert found == {"all": (3, 1), "state": (3, 1), "state/*.py": (1, 0), "state/store/": (2, 1)}


def test_a_revision_is_read_as_its_working_tree() -> None:
    head = dict(revision("HEAD"))
    changed = subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True, check=True)
    touched = [line[3:].split(" -> ") for line in changed.stdout.splitlines()]
    same = {path: text for path, text in working_tree() if [path] not in touched and path in head}
    assert len(same) > 100
    assert same.items() <= head.items()
