"""Code lines and files of the product per folder, in the working tree or at any revision.

    python -m tests.house.lines [REVISION]

A code line is neither blank nor a comment nor part of a docstring. `__init__.py` counts for lines, not for files.
"""

import io
import subprocess
import sys
import tarfile
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("barrier_runtime", "coordinator", "state")
_LAYOUT = {tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING, tokenize.COMMENT}


def code_lines(source: bytes) -> int:
    """Number of lines with code. A string that is a whole statement is a docstring."""
    tokens = [token for token in tokenize.tokenize(io.BytesIO(source).readline) if token.type not in _LAYOUT]
    lines: set[int] = set()
    statement: list[tokenize.TokenInfo] = []
    for token in tokens:
        if token.type in (tokenize.NEWLINE, tokenize.ENDMARKER):
            if {each.type for each in statement} != {tokenize.STRING}:
                for each in statement:
                    lines.update(range(each.start[0], each.end[0] + 1))
            statement = []
        else:
            statement.append(token)
    texts = source.splitlines()
    return sum(1 for line in lines if texts[line - 1].strip())


def working_tree() -> Iterator[tuple[str, bytes]]:
    for package in PACKAGES:  # `rglob` does not follow the links to coordinator and state
        for path in sorted((ROOT / package).rglob("*.py")):
            yield str(path.relative_to(ROOT)), path.read_bytes()


def revision(name: str) -> Iterator[tuple[str, bytes]]:
    archive = subprocess.run(["git", "archive", name, *PACKAGES], cwd=ROOT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tree:
        for member in tree:
            content = tree.extractfile(member) if member.isfile() and member.name.endswith(".py") else None
            if content is not None:
                yield member.name, content.read()


def folders(path: str) -> tuple[str, ...]:
    """Folders to which a file counts: all, the file's package, the folder in the package."""
    package, *inner = path.split("/")
    return ("all", package, f"{package}/{inner[0]}/" if len(inner) > 1 else f"{package}/*.py")


def table(files: Iterable[tuple[str, bytes]]) -> dict[str, tuple[int, int]]:
    """Code lines and files of each folder."""
    lines: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for path, source in files:
        size = code_lines(source)
        for folder in folders(path):
            lines[folder] += size
            counts[folder] += not path.endswith("__init__.py")
    return {folder: (lines[folder], counts[folder]) for folder in sorted(lines)}


def main(arguments: list[str]) -> None:
    files = revision(arguments[0]) if arguments else working_tree()
    print(f"{'folder':<32}{'code lines':>12}{'files':>8}")
    for folder, (lines, count) in table(files).items():
        print(f"{folder:<32}{lines:>12,}{count:>8}")


if __name__ == "__main__":
    main(sys.argv[1:])
