"""How a database of RocksDB begins with the files of a snapshot."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from barrier_runtime.state.file_links import database_of, link_or_copy, segment_number
from barrier_runtime.state.kv.key_ranges import RANGES_FILE


def link_database(source: Path, names: Sequence[str], target: Path, database: int = 0) -> None:
    """Make `target` (fresh) a database of the files `names` of `source`, which stays as it is. Segments among them are
    not the database's, nor is what belongs to another one than `database` (`file_links.database_of`).

    Opening a database rewrites its MANIFEST and goes on with its numbering, so a snapshot is never opened in place.
    SSTs never change: they are linked; the small rest is copied.
    """
    target.mkdir(parents=True, mode=0o700)
    for name in names:
        number, own_name = database_of(name)
        if number != database or segment_number(name) is not None or name == RANGES_FILE:
            continue
        if name.endswith(".sst"):
            link_or_copy(source / name, target / own_name)
        else:
            shutil.copyfile(source / name, target / own_name)
