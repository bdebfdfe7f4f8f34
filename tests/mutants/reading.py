"""Mutants of reading from a store: versions of files, prefetching, and waits."""

from tests.mutants.mutant import Mutant

_FETCHED = "tests/barrier_runtime/connectors/files/test_files_fetched_ahead.py"
_ENDS = "tests/barrier_runtime/runtime/sources/test_ends.py"
_RANGES = "tests/barrier_runtime/connectors/source_bases/test_ranges.py"

MUTANTS = (
    Mutant(
        "ranges-of-any-version",
        "each range is of the version of the file that was listed",
        "barrier_runtime/connectors/files/source/remote.py",
        'self._etag = "" if grows else etag',
        'self._etag = ""',
        (_FETCHED,),
    ),
    Mutant(
        "longer-file-goes-unnoticed",
        "where a store has no versions, a file that became longer is noticed at its end",
        "barrier_runtime/connectors/files/source/remote.py",
        "more = 1 if not",
        "more = 0 if not",
        (_FETCHED,),
    ),
    Mutant(
        "split-that-waits-for-bytes-is-idle",
        "a split whose bytes have not come yet is not idle, and holds the watermark",
        "barrier_runtime/runtime/sources/driver.py",
        "if batch is None and split.waits_for_bytes:",
        "if batch is None and split.waits_for_bytes and split.finished:",
        (_FETCHED,),
    ),
    Mutant(
        "last-in-a-pass-takes-the-room",
        "the split that is furthest behind gets the next bytes when there is little room",
        "barrier_runtime/connectors/source_bases/ranges.py",
        "                self._refused |= needed\n",
        "",
        (_RANGES,),
    ),
    Mutant(
        "no-part-beyond-the-bound",
        "a part larger than the bound is read when nothing else is on its way",
        "barrier_runtime/connectors/source_bases/ranges.py",
        " or (needed and not self._parts)",
        "",
        (_RANGES,),
    ),
    Mutant(
        "released-bytes-stay-counted",
        "bytes that were read make room for others",
        "barrier_runtime/connectors/source_bases/ranges.py",
        "            self.held_bytes -= size\n            self.came",
        "            self.came",
        (_RANGES,),
    ),
    Mutant(
        "at-most-once-replays",
        "after a failure a split is not read from the last known position",
        "barrier_runtime/runtime/sources/ahead.py",
        "            split.reader.seek(position)\n",
        "            split.reader.seek(reached[split.id].position)\n",
        (_ENDS,),
    ),
    Mutant(
        "written-rows-are-skipped-rows",
        "a position that the sink has written counts, if it is later than the checkpoint's",
        "barrier_runtime/runtime/sources/ahead.py",
        "    return {**found, **later}\n",
        "    return found\n",
        (_ENDS,),
    ),
    Mutant(
        "skipped-rows-count-twice",
        "rows that the sink wrote since the checkpoint count once",
        "barrier_runtime/runtime/sources/ahead.py",
        "            split.rows = reached[split.id].rows\n",
        "",
        (_ENDS,),
    ),
    Mutant(
        "rows-before-positions",
        "no row is read before a decided checkpoint holds the position of its split",
        "barrier_runtime/runtime/sources/ahead.py",
        "        split.held = True\n",
        "        split.held = restored\n",
        (_ENDS,),
    ),
    Mutant(
        "skips-are-forgotten",
        "checkpoints keep the number of skipped rows",
        "barrier_runtime/runtime/sources/progress.py",
        "skipped=self.skipped)",
        "skipped=0)",
        (_ENDS,),
    ),
)
