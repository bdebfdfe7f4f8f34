"""`run_local` works with the packages of `pip install barrier-runtime` alone."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
IMPORTED_AS = {"prometheus-client": "prometheus_client"}

PROGRAM = """
import sys
for name in {blocked!r}:
    sys.modules[name] = None  # its import raises
sys.argv = ["README.md"]
exec(compile({code!r}, "README.md", "exec"), {{"__name__": "__main__"}})
"""


@pytest.mark.slow
def test_a_local_run_needs_no_package_of_any_extra() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (coordinator,) = re.findall(r"^coordinator = \[(.+)\]$", project, re.MULTILINE)
    names = [IMPORTED_AS.get(name, name) for name in re.findall(r'"([\w-]+)>', coordinator)]
    assert {"starlette", "uvicorn", "jinja2", "prometheus_client"} <= set(names)
    blocked = [
        *names,
        "pyspark",
        "boto3",
        "obstore",
        "confluent_kafka",
        "psycopg",
        "deltalake",
        "pyiceberg",
        "greenlet",
    ]
    code = (ROOT / "README.md").read_text(encoding="utf-8").partition("```python\n")[2].partition("```")[0]
    command = [sys.executable, "-c", PROGRAM.format(blocked=blocked, code=code)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("job readings finished: 2,400 records read")
