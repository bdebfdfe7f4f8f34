"""Committable of a file sink: each staged file and its final name.

The *incarnation* in a name is random, drawn when the sink opens, so runs never share a name. The incarnation begins
with a tag of the decision log: tokens of different logs, of jobs of the same name that share a folder, cannot be
compared.

| file of this job and sink, not listed by this subtask          | deleted by `Sweep`                           |
|----------------------------------------------------------------|----------------------------------------------|
| of this log, an older token, this subtask's share, any lineage | yes: everything decided of the file is shown |
| of this log, this token or a newer token                       | no: ours, or this process is a zombie        |
| of another log                                                 | no: the owner may live and have decided      |
| of a release without tags (8 digits)                           | if a decided file of ours has the incarnation|

A listed file is committed whatever its tag. A multipart upload has only the final name; its incarnation begins with a
tag of job and sink.
"""

import hashlib
import re
from dataclasses import dataclass

import msgspec

from barrier_runtime.connectors.sink import committable_format
from barrier_runtime.state.errors import Corrupt
from barrier_runtime.state.store.multipart import Upload
from barrier_runtime.state.versioned import VersionedDecoder

COMMITTABLE_VERSION = 2  # version 1 had no uploads and no sizes
_TAG_DIGITS = 16
RANDOM_DIGITS = 8  # after the tags of an incarnation
_STAGED = re.compile(
    r"_staging/(?P<job>[^/]+)/(?P<sink>[^/]+)/(?P<token>\d+)/(?P<subtask>\d+)-(?P<incarnation>[0-9a-f]+)-\d+\.[a-z]+",
    re.ASCII,
)
_FINAL = re.compile(
    r"(?:[^/=]+=[^/]*/)*"
    r"part-(?P<checkpoint>\d{8,})-(?P<subtask>\d+)-(?P<token>\d+)-(?P<incarnation>[0-9a-f]+)-\d+\.[a-z]+",
    re.ASCII,
)


class StagedFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    staged: str  # key of the hidden file; empty for an upload
    final: str  # key that readers see; only the folder, with a slash, until the checkpoint is known
    sha256: str  # hex
    rows: int
    size: int = 0  # bytes; 0: not recorded
    upload: Upload | None = None


class FileCommittable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    files: tuple[StagedFile, ...]


_DECODER = VersionedDecoder(committable_format(COMMITTABLE_VERSION), msgspec.json.Decoder(FileCommittable))


@dataclass(frozen=True)
class FileNames:
    """Names of a sink subtask. `owner`: tag of the decision log."""

    job: str
    sink: str
    token: int
    subtask: int
    owner: str
    random: str
    suffix: str

    @property
    def incarnation(self) -> str:
        return self.owner + self.random

    @property
    def staging(self) -> str:
        return staging_prefix(self.job, self.sink)

    def staged(self, number: int) -> str:
        return f"{self.staging}{self.token}/{self.subtask}-{self.incarnation}-{number}.{self.suffix}"

    def final(self, checkpoint: int, part: int, folder: str = "") -> str:
        """Returns a final name; names sort by checkpoint. `folder` ends with a slash."""
        return f"{folder}part-{checkpoint:08d}-{self.subtask}-{self.token}-{self.incarnation}-{part}.{self.suffix}"

    def longest_final(self, folder: str) -> str:
        """Name of the greatest length: uploads have another tag."""
        return self.final(10**15, 10**6, folder) + "0" * _TAG_DIGITS

    def probe(self) -> str:
        return f"{self.staging}{self.token}/{self.subtask}-{self.incarnation}-0.probe"


@dataclass(frozen=True)
class Sweep:
    """Orphans that a subtask may delete, once all decided files of its share are shown.

    `owner`: prefix of incarnations. `known`: incarnations of decided files.
    """

    token: int
    subtask: int
    parallelism: int
    owner: str
    known: frozenset[str] = frozenset()

    def takes_staged(self, key: str) -> bool:
        return self._takes(_STAGED.fullmatch(key))

    def takes_upload(self, key: str) -> bool:
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
    """Tag of the decision log `log`; `store`: the URL above it, so a copy elsewhere has another tag."""
    return _tag(f"{log} {store}")


def _tag(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_TAG_DIGITS]


def incarnation_of(file: StagedFile) -> str:
    return _final_match(file)["incarnation"]


def origin_of(file: StagedFile) -> tuple[int, int]:
    """Fencing token of the writer, and the checkpoint that closed the file (or an earlier checkpoint)."""
    match = _final_match(file)
    return int(match["token"]), int(match["checkpoint"])


def origin_of_name(name: str) -> tuple[str, tuple[int, int]] | None:
    """Tag of the decision log ("": a release without tags), and `origin_of`. None: not a sink's name."""
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
    """No commit or abort may touch a foreign file."""
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
    return _DECODER.decode(data, where)
