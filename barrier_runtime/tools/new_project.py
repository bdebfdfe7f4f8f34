"""The command `new`: a project from the templates in `project/`."""

import importlib.resources
import os
from pathlib import Path

from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.ids import check_job_id

FILES = {
    "flow.py": "flow.py.txt",
    "test_flow.py": "test_flow.py.txt",
    "Makefile": "Makefile.txt",
    "compose.yaml": "compose.yaml.txt",
    ".gitignore": "gitignore.txt",
}


def new_project(name: str, where: Path) -> list[str]:
    """Returns lines for the user.

    Raises `InvalidJob` for an invalid name, and for a nonempty folder.
    """
    check_job_id(name, "the project's name, which is the job's as well,")
    folder = where / name
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InvalidJob(f"{folder} is there and not empty: choose another name, or remove it")
    templates = importlib.resources.files("barrier_runtime.tools") / "project"
    try:
        folder.mkdir(exist_ok=True)
        for file, template in FILES.items():
            text = (templates / template).read_text(encoding="utf-8").replace("@NAME@", name)
            (folder / file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidJob(f"{folder} cannot be written ({error.strerror}): go to a folder of your own") from error
    return [
        f"{name}{os.sep}: {', '.join(FILES)}",
        f"cd {name}",
        "make run     # the flow, in one process, without Spark",
        "make test    # its tests (pip install pytest)",
    ]
