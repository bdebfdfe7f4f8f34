"""docs/security.md promises rules and names tests: both must exist. The page's bucket policy names every prefix."""

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from barrier_runtime.coordinator.server.web.sessions import PREFIX
from barrier_runtime.state.store.paths import Paths
from tests.parsed import statements

ROOT = Path(__file__).resolve().parents[2]
RULES = {f"G{n}" for n in range(1, 8)} | {f"H{n}" for n in range(1, 5)} | {f"J{n}" for n in range(1, 8)}
NOT_BUILT = {"J3"}  # the document says so


def table() -> dict[str, list[str]]:
    """Rule → the named tests of the rule."""
    text = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([GHJ]\d) \|.*$", text, re.MULTILINE)
    lines = [line for line in text.splitlines() if re.match(r"\| [GHJ]\d \|", line)]
    return {rule: re.findall(r"`(tests/[^`]+)`", line) for rule, line in zip(rows, lines, strict=True)}


def docstring(test: str) -> str:
    """Docstring of a test named as path::function. Fails if the test is missing."""
    path, _, name = test.partition("::")
    nodes = statements(ast.parse((ROOT / path).read_text(encoding="utf-8")))
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    [found] = [function for function in functions if function.name == name]
    return ast.get_docstring(found) or ""


@pytest.mark.slow
def test_every_rule_is_in_the_table_with_tests_that_exist() -> None:
    rules = table()
    assert set(rules) == RULES
    assert {rule for rule, tests in rules.items() if not tests} == NOT_BUILT
    for rule, tests in rules.items():
        for test in tests:
            said = docstring(test)
            assert rule in said or test.startswith("tests/test_house.py"), f"{test} does not say that it holds {rule}"


def folders_of_a_job() -> Iterator[str]:
    """Path parts behind the job's name in each key and prefix that `Paths` makes, down to the first folder."""
    paths = Paths("flights")
    for name, member in vars(Paths).items():
        made = member.fget if isinstance(member, property) else member
        if name.startswith("_") or not inspect.isfunction(made) or inspect.signature(made).return_annotation is not str:
            continue
        given = [1 if each.annotation is int else "x" for each in list(inspect.signature(made).parameters.values())[1:]]
        key = made(paths, *given)
        assert key.startswith("flights/"), f"Paths.{name} gives {key}"
        folder, slash, _ = key.removeprefix("flights/").partition("/")
        yield f"{folder}{slash}"


def test_the_policy_of_the_bucket_lets_somebody_write_every_prefix() -> None:
    """J5: a job under this policy is refused no write."""
    text = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    table = [line for line in text.splitlines() if line.startswith("| ")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    written = {named for _, may, on, *_ in rows if "s3:PutObject" in may for named in re.findall(r"`<root>/(.*?)`", on)}
    folders = set(folders_of_a_job())
    assert folders >= {"log/", "data/", "write-ahead/", "lease.json"}, "Paths was asked"
    wanted = {f"<job>/{each}*" if each.endswith("/") else f"<job>/{each}" for each in folders - {"probe"}}
    wanted |= {"<job>/probe*", "_probe*", f"{PREFIX}*"}
    assert written == wanted
