"""Every input of `tests/field` names the report from which the input comes."""

import ast
import re
from pathlib import Path

FIELD = Path(__file__).resolve().parents[1] / "field"
SOURCE = re.compile(r"# Source: ([\w.-]+/[\w.-]+#\d+(, [\w.-]+/[\w.-]+#\d+)*|our own trial)$")


def unnamed_tests(text: str) -> list[str]:
    """Names of the test functions in `text` without a comment `# Source: …` directly above."""
    lines = text.splitlines()
    return [
        node.name
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
        if not SOURCE.match(lines[min([node.lineno, *(each.lineno for each in node.decorator_list)]) - 2])
    ]


def test_a_test_of_the_field_names_its_source() -> None:
    assert unnamed_tests("import x\n\ndef test_a(): ...\n") == ["test_a"]
    assert unnamed_tests("# Source: apache/spark#12\n@mark\ndef test_a(): ...\n") == []
    wrong = [f"{file.name}: {name}" for file in FIELD.rglob("test_*.py") for name in unnamed_tests(file.read_text())]
    assert wrong == []
