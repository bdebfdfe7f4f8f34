"""Files that never change, shared between folders: hard links where the file system has them; the names of segments.

A local checkpoint, a restore and a survivor's copy take such files from each other without copying their bytes.
"""

import os
import re
import shutil
from pathlib import Path

SEGMENT_FILE = re.compile(r"segment-([0-9]{1,20})\.rows")


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
