"""What a file sink needs to finish one transaction from any process: which staged file becomes which final file.

Also the only place that makes or reads a sink's file names. Staged files are under `_staging/` (hidden: Spark, pyarrow
and others skip names that begin with `_` or `.`), by job, sink and fencing token, and carry the index of the subtask
that wrote them. The *incarnation* (random, drawn when the sink opens) keeps two runs into one folder from ever meeting
in a name, also when checkpoint ids start again at 1; it is persisted in the committable, so every repeat of a commit
uses the same name.

The incarnation begins with a tag of the decision log that the token is a position of. Jobs of one name whose
checkpoints are in different places may share a folder, and their tokens say nothing about each other:

| what is found, of our job and sink, not listed by us        | swept                                           |
|-------------------------------------------------------------|-------------------------------------------------|
| of our log, an older token, our share of subtasks           | yes: everything decided of it has been shown    |
| … also of another lineage (a start with restore="none")     | yes: tokens rise over all lineages of a log     |
| of our log, our token or a newer one                        | no: it is ours, or we are the zombie            |
| of another log: another job, or ours before its checkpoints | no: its owner may live and have decided it; who |
|   were deleted or moved                                     | knows that it does not may delete it by hand    |
| of a release that knew no tags (8 digits)                   | only if a committable of ours has the same      |
|                                                             | incarnation, which proves it to be of our log   |

A committable names its files, so what a manifest lists is committed whatever the tags are.

A multipart upload has no name but the final one. There the incarnation begins with a tag of job and sink, because
several jobs may write below one URL and none may touch another's uploads.
"""

import hashlib
import re
from dataclasses import dataclass

import msgspec

from barrier_runtime.connectors.committable import committable_format
from barrier_runtime.state.errors import Corrupt
from barrier_runtime.state.store.multipart import Upload
from barrier_runtime.state.versioned import VersionedDecoder

COMMITTABLE_VERSION = 2  # 1 knew no uploads and no sizes
_TAG_DIGITS = 16
RANDOM_DIGITS = 8  # of an incarnation, behind its tags
_STAGED = re.compile(
    r"_staging/(?P<job>[^/]+)/(?P<sink>[^/]+)/(?P<token>\d+)/(?P<subtask>\d+)-(?P<incarnation>[0-9a-f]+)-\d+\.[a-z]+",
    re.ASCII,
)
_FINAL = re.compile(
    r"(?:[^/=]+=[^/]*/)*"  # folders of `partition_by`
    r"part-(?P<checkpoint>\d{8,})-(?P<subtask>\d+)-(?P<token>\d+)-(?P<incarnation>[0-9a-f]+)-\d+\.[a-z]+",
    re.ASCII,
)


class StagedFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    staged: str  # key of the hidden file; empty for an upload
    final: str  # key that readers see; until the transaction's checkpoint is known its folder alone, with a slash
    sha256: str  # hex, of the whole file
    rows: int
    size: int = 0  # bytes; 0: not noted
    upload: Upload | None = None


class FileCommittable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    files: tuple[StagedFile, ...]  # in the order of their rows


_DECODER = VersionedDecoder(committable_format(COMMITTABLE_VERSION), msgspec.json.Decoder(FileCommittable))


@dataclass(frozen=True)
class FileNames:
    """Names of one sink subtask in one incarnation. `owner`: what the incarnations of all its orphans begin with;
    `random`: the rest of its own."""

    job: str
    sink: str
    token: int
    subtask: int
    owner: str
    random: str
    suffix: str
    folders: bool = False  # final names may be in folders

    @property
    def incarnation(self) -> str:
        return self.owner + self.random

    @property
    def staging(self) -> str:
        return staging_prefix(self.job, self.sink)

    @property
    def finals(self) -> str:
        """What all its final names begin with, those of other jobs too."""
        return "" if self.folders else "part-"

    def staged(self, number: int) -> str:
        """`number` counts the staged files of this incarnation."""
        return f"{self.staging}{self.token}/{self.subtask}-{self.incarnation}-{number}.{self.suffix}"

    def final(self, checkpoint: int, part: int, folder: str = "") -> str:
        """Sorts by checkpoint; `part` counts the files of one transaction. `folder`: with a slash at its end."""
        return f"{folder}part-{checkpoint:08d}-{self.subtask}-{self.token}-{self.incarnation}-{part}.{self.suffix}"

    def longest_final(self, folder: str) -> str:
        """As long as a final name gets, also of an upload, whose incarnation has a tag more."""
        return self.final(10**15, 10**6, folder) + "0" * _TAG_DIGITS

    def probe(self) -> str:
        """Written and deleted when the sink opens; like a staged file, so that a leftover one is swept with them."""
        return f"{self.staging}{self.token}/{self.subtask}-{self.incarnation}-0.probe"


@dataclass(frozen=True)
class Sweep:
    """Which orphans one subtask may drop, once everything decided that is its to finish has been shown: those of
    incarnations that begin with `owner`, or are among `known`, under tokens older than `token`."""

    token: int
    subtask: int
    parallelism: int
    owner: str
    known: frozenset[str] = frozenset()

    def takes_staged(self, key: str) -> bool:
        return self._takes(_STAGED.fullmatch(key))

    def takes_upload(self, key: str) -> bool:
        """`key`: the name that the file of an upload, neither completed nor aborted, would get."""
        return self._takes(_FINAL.fullmatch(key))

    def _takes(self, match: re.Match[str] | None) -> bool:
        return (
            match is not None
            and int(match["token"]) < self.token
            and int(match["subtask"]) % self.parallelism == self.subtask
            and (match["incarnation"] in self.known or self._owns(match["incarnation"]))
        )

    def _owns(self, incarnation: str) -> bool:
        return len(incarnation) > len(self.owner) and incarnation.startswith(self.owner)


def staging_prefix(job: str, sink: str) -> str:
    return f"_staging/{job}/{sink}/"


def sink_tag(job: str, sink: str) -> str:
    return _tag(f"{job}/{sink}")


def log_tag(log: str, store: str) -> str:
    """`log`: the identity of a decision log, `store`: the URL that it is below. A copy elsewhere is another."""
    return _tag(f"{log} {store}")


def _tag(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_TAG_DIGITS]


def incarnation_of(file: StagedFile) -> str:
    """Of whoever staged it. Raises `Corrupt` when its name is none of ours."""
    return _final_match(file)["incarnation"]


def origin_of(file: StagedFile) -> tuple[int, int]:
    """(fencing token under which the file was written, checkpoint that closed it or an earlier one). Raises `Corrupt`
    when its name is none of ours."""
    match = _final_match(file)
    return int(match["token"]), int(match["checkpoint"])


def origin_of_name(name: str) -> tuple[str, tuple[int, int]] | None:
    """Tag of the decision log under which the file of this final name was written, and its `origin_of`. The tag is
    empty for a release that knew none. None: no name of ours."""
    match = _FINAL.fullmatch(name)
    if match is None:
        return None
    owner = match["incarnation"][:-RANDOM_DIGITS]
    return owner[-_TAG_DIGITS:], (int(match["token"]), int(match["checkpoint"]))


def _final_match(file: StagedFile) -> re.Match[str]:
    match = _FINAL.fullmatch(file.final)
    if match is None:
        raise Corrupt(
            f"a committable calls {file.final!r} a file of this sink, which is not a name of ours: restore a backup"
        )
    return match


def check_names(committable: FileCommittable, job: str, sink: str, where: str) -> FileCommittable:
    """`committable`, if every name in it is one that this sink of this job makes. Raises `Corrupt` otherwise: what is
    committed is moved and what is aborted is deleted, and neither may ever happen to anything else."""
    for file in committable.files:
        if not is_name_of(file, job, sink):
            raise Corrupt(
                f"{where}: a committable wants {file.staged[:200]!r} published as {file.final[:200]!r}, which are no "
                "names of this sink: nothing was committed or deleted; restore an intact copy of the checkpoint"
            )
    return committable


def is_name_of(file: StagedFile, job: str, sink: str) -> bool:
    final = _FINAL.fullmatch(file.final)
    if file.upload is not None:
        return not file.staged and final is not None and final["incarnation"].startswith(sink_tag(job, sink))
    staged = _STAGED.fullmatch(file.staged)
    return staged is not None and (staged["job"], staged["sink"]) == (job, sink) and final is not None


def encode_committable(files: tuple[StagedFile, ...]) -> bytes:
    return msgspec.json.encode(FileCommittable(COMMITTABLE_VERSION, files))


def decode_committable(data: bytes, where: str) -> FileCommittable:
    """Decode what `encode_committable` made; anything else is refused undecoded."""
    return _DECODER.decode(data, where)
