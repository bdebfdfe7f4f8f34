"""Files that never change, shared between folders: hard links where the file system has them; the names of segments,
and of files of databases that are side by side.

A local checkpoint, a restore and a survivor's copy take such files from each other without copying their bytes.
"""

import os
import re
import shutil
from pathlib import Path

SEGMENT_FILE = re.compile(r"segment-([0-9]{1,20})\.rows")
BESIDE = r"beside-[1-9][0-9]{0,5}-"  # before the name of a file of another database than the first
_OF_DATABASE = re.compile(r"(?:beside-([1-9][0-9]{0,5})-)?(.*)", re.DOTALL)


def link_or_copy(source: Path, target: Path) -> None:
    """For files that never change."""
    try:
        os.link(source, target)
    except OSError:  # another file system: costs time, nothing else; a missing source fails in the copy too
        shutil.copyfile(source, target)


def segment_file(number: int) -> str:
    """Name of the segment with that number."""
    return f"segment-{number:06d}.rows"


def segment_number(name: str) -> int | None:
    """None for a file that is not a segment."""
    named = SEGMENT_FILE.fullmatch(name)
    return None if named is None else int(named[1])


def beside_name(database: int, name: str) -> str:
    """What a snapshot calls the file `name` of its database with that number; 0 is the first."""
    return name if database == 0 else f"beside-{database}-{name}"


def database_of(name: str) -> tuple[int, str]:
    """The opposite of `beside_name`."""
    named = _OF_DATABASE.fullmatch(name)
    assert named is not None, "it matches everything"
    return int(named[1] or 0), named[2]
