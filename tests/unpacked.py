"""Files stored by earlier releases, from the archives of tests/stored."""

import tarfile
from pathlib import Path


def unpack(archive: Path, folder: Path) -> None:
    safely = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # missing in Python 3.11.2
    with tarfile.open(archive) as stored:
        stored.extractall(folder, **safely)  # type: ignore[arg-type]
