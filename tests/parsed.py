"""Files of the repository as syntax trees, each parsed once for all house rules that read the file."""

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
    """The kept part of a file; the trees of all files would take hundreds of megabytes."""

    docstring: str
    imports: tuple[tuple[str, int], ...]
    """Dotted names imported anywhere in the file, also inside functions, with their lines."""


@cache
def parsed(file: str) -> ast.Module:
    """The tree of a file of the product, whose path begins at the repository's root. Callers must not change it."""
    tree = _tree(file)
    gc.freeze()  # kept to the end: excluded from garbage collection
    return tree


@cache
def nodes(file: str) -> tuple[ast.AST, ...]:
    """All of `parsed`, in the order of `ast.walk`, but the marks that a name is loaded or stored."""
    return tuple(walk(parsed(file)))


@cache
def outline(file: str) -> Outline:
    tree = parsed(file) if file.startswith(PRODUCT) else _tree(file)
    return Outline(ast.get_docstring(tree) or "", tuple(_imports(tree, file)))


def walk(tree: ast.AST) -> list[ast.AST]:
    """As `nodes`, in less than half of the time of `ast.walk`."""
    found = [tree]
    for node in found:  # which grows
        found += children(node)
    return found


def children(node: ast.AST) -> list[ast.AST]:
    found: list[ast.AST] = []
    for name in _fields(node.__class__):
        value = getattr(node, name)
        if value.__class__ is list:
            found += [each for each in value if isinstance(each, ast.AST)]
        elif isinstance(value, ast.AST):
            found.append(value)
    return found


@cache
def _fields(kind: type[ast.AST]) -> tuple[str, ...]:
    """Fields that may contain nodes."""
    return tuple(name for name in kind._fields if name not in _WITHOUT_NODES)


_WITHOUT_NODES = {"ctx", "id", "attr", "arg", "asname", "kind", "type_comment"}  # texts, and load or store
_BLOCKS = ("body", "handlers", "orelse", "finalbody", "cases")


def statements(tree: ast.Module) -> list[ast.AST]:
    """Statements of a file, at any depth: functions, classes and imports among them. A tenth of all nodes."""
    found: list[ast.AST] = [tree]
    for node in found:  # which grows
        for name in _BLOCKS:
            block = getattr(node, name, None)
            if isinstance(block, list):
                found += block
    return found


def _tree(file: str) -> ast.Module:
    return ast.parse((ROOT / file).read_text(encoding="utf-8"), file)


def _imports(tree: ast.Module, file: str) -> Iterator[tuple[str, int]]:
    for node in statements(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno}: relative imports hide the direction: write the full name"
            yield node.module or "", node.lineno
