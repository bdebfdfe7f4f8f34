"""Where and with which versions a figure was measured; stored with each result."""

import os
import platform
import re
import shlex
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

_LIBRARIES = ("pyspark", "pyarrow", "rocksdict", "numpy", "confluent-kafka", "uvloop")


def facts() -> dict[str, str]:
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False)
    processor = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text()) if _linux() else None
    memory = re.search(r"MemTotal:\s*(\d+)", Path("/proc/meminfo").read_text()) if _linux() else None
    return {
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "commit": commit.stdout.strip() or "unknown",
        "cores": str(os.cpu_count()),
        "processor": processor[1] if processor else platform.processor(),
        "memory": f"{int(memory[1]) / 1024**2:.0f} GiB" if memory else "unknown",
        "system": f"{platform.system()} {platform.release()}",
        "load at the start": " ".join(f"{load:.1f}" for load in os.getloadavg()),
        "python": f"{platform.python_version()} of {sys.base_prefix}",
        "java": (java.stderr.splitlines() or ["unknown"])[0],
        **{name: version(name) for name in _LIBRARIES},
    }


def command() -> str:
    """The command, for the repository's folder: each part of the benchmarks is also a program."""
    found = getattr(sys.modules["__main__"], "__spec__", None)  # None: a script
    program = [sys.argv[0]] if found is None else ["-m", found.name.removesuffix(".__main__")]
    return shlex.join(["python", *program, *sys.argv[1:]])


def describe() -> str:
    return ", ".join(f"{name} {value}" for name, value in facts().items()) + f"\ncommand: {command()}"


def _linux() -> bool:
    return platform.system() == "Linux"
