"""docs/windows.md: its programs print what it says, and it names every kind of window there is."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import barrier_runtime

DOCUMENT = Path(__file__).resolve().parents[4] / "docs" / "windows.md"
PROGRAMS = re.findall(
    r"```python\n# (\w+\.py)\n(.*?)```\nIt prints\n```\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL
)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "program", "printed"), PROGRAMS, ids=[name for name, _, _ in PROGRAMS])
def test_the_programs_print_what_the_document_says(name: str, program: str, printed: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(program, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, name], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == printed


def test_every_kind_of_window_is_in_the_table() -> None:
    public = {
        name
        for name, module in barrier_runtime._HOME.items()
        if module == "barrier_runtime.operators.windows.assigners"
    }
    rows = [line for line in DOCUMENT.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    assert {re.search(r"`(\w+)\(", row).group(1) for row in rows} == public  # type: ignore[union-attr]
    assert len(PROGRAMS) == DOCUMENT.read_text(encoding="utf-8").count("```python")
