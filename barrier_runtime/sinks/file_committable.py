"""What a file sink needs to finish one transaction from any process: which staged file becomes which final file.

Also the only place that makes or reads a sink's file names. Staged files are under `_staging/` (hidden: Spark, pyarrow
and others skip names that begin with `_` or `.`), by job, sink and fencing token, and carry the index of the subtask
that wrote them. The *incarnation* (random, drawn when the sink opens) keeps two runs into one folder from ever meeting
in a name, also when checkpoint ids start again at 1; it is persisted in the committable, so every repeat of a commit
uses the same name.

A multipart upload has no name but the final one. There the incarnation begins with a tag of job and sink, because
several jobs may write below one URL and none may touch another's uploads.
"""

import hashlib
import re
from dataclasses import dataclass

import msgspec

from barrier_runtime.sinks.committable import decode_versioned
from state.errors import Corrupt
from state.multipart import Upload

COMMITTABLE_VERSION = 2
_OLDER = (1,)  # knew no uploads and no sizes
_OWNER_DIGITS = 16
_STAGED = re.compile(
    r"_staging/(?P<job>[^/]+)/(?P<sink>[^/]+)/(?P<token>\d+)/(?P<subtask>\d+)-[0-9a-f]+-\d+\.[a-z]+", re.ASCII
)
_FINAL = re.compile(
    r"part-(?P<checkpoint>\d{8,})-(?P<subtask>\d+)-(?P<token>\d+)-(?P<incarnation>[0-9a-f]+)-\d+\.[a-z]+", re.ASCII
)


class StagedFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    staged: str  # key of the hidden file; empty for an upload
    final: str  # key that readers see; empty until the transaction's checkpoint is known
    sha256: str  # hex, of the whole file
    rows: int
    size: int = 0  # bytes; 0: not noted
    upload: Upload | None = None


class FileCommittable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    files: tuple[StagedFile, ...]  # in the order of their rows


@dataclass(frozen=True)
class FileNames:
    """Names of one sink subtask in one incarnation."""

    job: str
    sink: str
    token: int
    subtask: int
    incarnation: str
    suffix: str

    @property
    def staging(self) -> str:
        return staging_prefix(self.job, self.sink)

    @property
    def finals(self) -> str:
        """What all final names begin with, those of other jobs too."""
        return "part-"

    def staged(self, number: int) -> str:
        """`number` counts the staged files of this incarnation."""
        return f"{self.staging}{self.token}/{self.subtask}-{self.incarnation}-{number}.{self.suffix}"

    def final(self, checkpoint: int, part: int) -> str:
        """Sorts by checkpoint; `part` counts the files of one transaction."""
        return f"part-{checkpoint:08d}-{self.subtask}-{self.token}-{self.incarnation}-{part}.{self.suffix}"

    def probe(self) -> str:
        """Written and deleted when the sink opens; like a staged file, so that a leftover one is swept with them."""
        return f"{self.staging}{self.token}/{self.subtask}-{self.incarnation}-0.probe"


def staging_prefix(job: str, sink: str) -> str:
    return f"_staging/{job}/{sink}/"


def is_leftover(key: str, token: int, subtask: int, parallelism: int) -> bool:
    """Was this staged file written under an older token, by a subtask whose committables are ours to finish?

    Only asked after all decided committables of ours have been committed: then nothing decided is left to be hit."""
    match = _STAGED.fullmatch(key)
    return match is not None and int(match["token"]) < token and int(match["subtask"]) % parallelism == subtask


def is_leftover_upload(key: str, job: str, sink: str, token: int, subtask: int, parallelism: int) -> bool:
    """The same for an upload that is neither completed nor aborted; `key` is the name its file would get."""
    match = _FINAL.fullmatch(key)
    return (
        match is not None
        and match["incarnation"].startswith(owner_tag(job, sink))
        and len(match["incarnation"]) > _OWNER_DIGITS
        and int(match["token"]) < token
        and int(match["subtask"]) % parallelism == subtask
    )


def owner_tag(job: str, sink: str) -> str:
    return hashlib.sha256(f"{job}/{sink}".encode()).hexdigest()[:_OWNER_DIGITS]


def origin_of(file: StagedFile) -> tuple[int, int]:
    """(fencing token under which the file was written, checkpoint that closed it or an earlier one). Raises `Corrupt`
    when its name is none of ours."""
    match = _FINAL.fullmatch(file.final)
    if match is None:
        raise Corrupt(
            f"a committable calls {file.final!r} a file of this sink, which is no name of ours: restore a backup"
        )
    return int(match["token"]), int(match["checkpoint"])


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
        return not file.staged and final is not None and final["incarnation"].startswith(owner_tag(job, sink))
    staged = _STAGED.fullmatch(file.staged)
    return staged is not None and (staged["job"], staged["sink"]) == (job, sink) and final is not None


def encode_committable(files: tuple[StagedFile, ...]) -> bytes:
    return msgspec.json.encode(FileCommittable(COMMITTABLE_VERSION, files))


def decode_committable(data: bytes, where: str) -> FileCommittable:
    """Decode what `encode_committable` made; anything else is refused undecoded."""
    return decode_versioned(data, FileCommittable, COMMITTABLE_VERSION, where, older=_OLDER)
