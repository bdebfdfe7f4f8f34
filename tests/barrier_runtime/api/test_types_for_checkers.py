"""What a type checker knows of the public names: every one, so that a wrong argument is seen before the job runs."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import barrier_runtime

ROOT = Path(__file__).resolve().parents[3]
SINKS = """
import barrier_runtime as br

reveal_type(br.ParquetSink("out"))
reveal_type(br.JsonlSink("out"))
reveal_type(br.CsvSink("out"))
reveal_type(br.CollectSink())
reveal_type(br.CallableSink(print))
br.ParquetSink("out", nonsense=1)
"""


def test_a_checker_finds_every_public_name_where_it_is_found_when_the_program_runs() -> None:
    tree = ast.parse(Path(str(barrier_runtime.__file__)).read_text())
    (block,) = [
        each
        for each in tree.body
        if isinstance(each, ast.If) and isinstance(each.test, ast.Name) and each.test.id == "TYPE_CHECKING"
    ]
    seen = {
        name.asname: f"{each.module}.{name.name}"
        for each in block.body
        if isinstance(each, ast.ImportFrom)
        for name in each.names
    }
    assert seen == {name: f"{home}.{name}" for name, home in barrier_runtime._HOME.items()}


@pytest.mark.slow
def test_mypy_knows_the_type_of_every_sink_and_sees_a_wrong_argument(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(SINKS)
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), str(program)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    revealed = [line.rpartition(".")[2].rstrip('"') for line in checked.stdout.splitlines() if "Revealed" in line]
    assert revealed == ["ParquetSink", "JsonlSink", "CsvSink", "CollectSink", "CallableSink"], checked.stdout
    assert 'Unexpected keyword argument "nonsense" for "ParquetSink"' in checked.stdout
