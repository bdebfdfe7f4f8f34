"""Counts pronouns per 1,000 words of prose: `python -m tests.house.prose [FOLDER or FILE …]`.

The prose of a Python file is docstrings and comments; of a Markdown file, all but code blocks and code spans.
"""

import argparse
import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.parsed import statements, walk

ROOT = Path(__file__).resolve().parents[2]
PRONOUNS = ("what", "one", "it", "its")
FOLDERS = ("barrier_runtime", "coordinator", "state", "tests", "benchmarks", "examples", "docs")
DOCUMENTS = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md")
_FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"``[^`]*``|`[^`]*`")
_STRING = re.compile(r"""\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'""")
_WORD = re.compile(r"[a-z']+")
_TEXTS = (ast.Constant, ast.JoinedStr)


@dataclass(frozen=True)
class Count:
    """Number of words, and of each pronoun of `PRONOUNS`."""

    words: int
    pronouns: tuple[int, ...]

    @property
    def per_thousand(self) -> tuple[float, ...]:
        """Occurrences of each pronoun per 1,000 words."""
        return tuple(1000 * number / max(self.words, 1) for number in self.pronouns)


def count(texts: Iterable[str]) -> Count:
    seen: Counter[str] = Counter()
    for text in texts:
        seen.update(_WORD.findall(_CODE.sub("X", _FENCED.sub("", text)).lower()))
    return Count(seen.total(), tuple(seen[pronoun] for pronoun in PRONOUNS))


def prose(file: Path) -> str:
    source = file.read_text(encoding="utf-8")
    return "\n".join(prose_of_python(source)) if file.suffix == ".py" else source


def prose_of_python(source: str) -> Iterator[str]:
    """Docstrings of modules, classes and functions, and comments that are no instruction to a tool."""
    tree = ast.parse(source)
    for node in statements(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node)
            if docstring:
                yield docstring
    marked = [(number, line) for number, line in enumerate(source.splitlines(), start=1) if "#" in line]
    within_strings = _lines_within_strings(tree) if marked else set()
    for number, line in marked:
        if number not in within_strings:
            _, mark, comment = _STRING.sub("", line).partition("#")
            if mark and "noqa" not in comment and "type:" not in comment:
                yield comment.strip("# ")


def _lines_within_strings(tree: ast.Module) -> set[int]:
    """The lines of strings of several lines, but the last line of each, which a comment may follow."""
    found: set[int] = set()
    for node in walk(tree):
        if node.__class__ in _TEXTS and node.end_lineno > node.lineno:  # type: ignore[attr-defined]
            found.update(range(node.lineno, node.end_lineno))  # type: ignore[attr-defined]
    return found


def files(place: Path) -> Iterator[Path]:
    """A file itself. Of a folder the Python files, not through links; of `docs` the pages as well."""
    if place.is_file():
        yield place
        return
    for file in sorted(place.rglob("*")):
        wanted = file.suffix == ".py" or (file.suffix == ".md" and place.name == "docs")
        if wanted and not any(parent.is_symlink() for parent in file.parents):
            yield file


def counted(place: str) -> Count:
    """The count of a file or folder, named from the repository's root."""
    return count(prose(file) for file in files(ROOT / place))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.house.prose", description=__doc__.splitlines()[0])
    parser.add_argument("places", nargs="*", default=[*FOLDERS, *DOCUMENTS], metavar="FOLDER or FILE")
    print(f"{'':50}{'words':>8} " + " ".join(f"{pronoun:>6}" for pronoun in PRONOUNS))
    for place in parser.parse_args().places:
        found = counted(place)
        print(f"{place:50}{found.words:>8,} " + " ".join(f"{number:>6.1f}" for number in found.per_thousand))


if __name__ == "__main__":
    main()
