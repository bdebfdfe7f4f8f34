"""Bytewax: the running count per key in a single worker, with recovery to SQLite files every `interval_ms`.

pip installs Bytewax once, into a side environment below build/, whose Python runs `bytewax_job.py`. There is a single
worker, because several would share an interpreter; `parallelism` is the number of partitions of the source. Sinks are
at least once.
"""

import os
import subprocess
import sys
from pathlib import Path

import msgspec

from benchmarks.engines.child import leave_facts, run_program, spec_of_this_run
from benchmarks.spec import Facts, RunSpec
from examples.servers.base import ServerError

VERSION = "0.21.1"
_HOME = Path("build/bench", f"bytewax-{VERSION}").resolve()


def settings(spec: RunSpec) -> dict[str, str]:
    return {
        "workers": "1",
        "partitions of the source": str(spec.parallelism),
        "recovery": f"SQLite, {spec.parallelism} partitions, no backup interval",
        "snapshot interval": f"{spec.interval_ms} ms",
        "guarantee of the sink": "at least once",
    }


def missing() -> str | None:
    """Reason why Bytewax cannot run here, or None. Creates the side environment if missing."""
    try:
        _set_up(_HOME)
    except ServerError as error:
        return str(error)
    return None


def main() -> int:
    spec = spec_of_this_run()
    plan = Path(spec.folder, "bytewax.json")
    plan.write_bytes(msgspec.json.encode(spec))
    root = str(Path(__file__).resolve().parents[2])
    environment = {**os.environ, "PYTHONPATH": root}
    code = run_program([str(_python(_HOME)), "-m", "benchmarks.engines.bytewax_job", str(plan)], environment)
    if code == 0:
        leave_facts(spec, Facts(version=VERSION, settings=settings(spec)))
    return code


def _python(home: Path) -> Path:
    return home / "venv/bin/python"


def _set_up(home: Path) -> None:
    """Raises `ServerError` with the attempts and the remedy."""
    done = home / "_DONE"
    if done.exists():
        return
    install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", f"bytewax=={VERSION}"]
    for command in (
        [sys.executable, "-m", "venv", "--clear", str(home / "venv")],
        [str(_python(home)), *install],
    ):
        tried = subprocess.run(command, capture_output=True, text=True, check=False)
        if tried.returncode != 0:
            said = (tried.stderr or tried.stdout).strip()[-1000:]
            raise ServerError(
                f"Bytewax is not there: {' '.join(command)} failed with {tried.returncode} (Python "
                f"{sys.version_info.major}.{sys.version_info.minor}). bytewax {VERSION} has wheels for Python 3.8 to "
                f"3.12 and comes from PyPI: see that pip reaches it, then run this again. It said:\n{said}"
            )
    done.touch()


if __name__ == "__main__":
    sys.exit(main())
