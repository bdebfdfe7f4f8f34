"""Files of the repository as syntax trees, each parsed once for all rules of the house that look into it."""

import ast
import gc
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("barrier_runtime/", "coordinator/", "state/")


@dataclass(frozen=True)
class Outline:
    """What is kept of a file, where keeping the trees of all files would take hundreds of megabytes."""

    docstring: str
    imports: tuple[tuple[str, int], ...]
    """Dotted names imported anywhere in the file, also inside functions, with their lines."""


@cache
def parsed(file: str) -> ast.Module:
    """The tree of a file of the product, whose path begins at the repository's root. Nobody may change it."""
    tree = _tree(file)
    gc.freeze()  # it stays to the end: no collection of garbage looks through it
    return tree


@cache
def nodes(file: str) -> tuple[ast.AST, ...]:
    """All of `parsed`, as `ast.walk` gives it."""
    return tuple(ast.walk(parsed(file)))


@cache
def outline(file: str) -> Outline:
    tree = parsed(file) if file.startswith(PRODUCT) else _tree(file)
    return Outline(ast.get_docstring(tree) or "", tuple(_imports(tree, file)))


def _tree(file: str) -> ast.Module:
    return ast.parse((ROOT / file).read_text(encoding="utf-8"), file)


def _imports(tree: ast.Module, file: str) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno}: relative imports hide the direction: write the full name"
            yield node.module or "", node.lineno
