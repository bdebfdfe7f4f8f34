"""Stored data with version numbers: known versions are read, others and damage are refused with a remedy."""

import pickle
from pathlib import Path

import msgspec
import pytest

from barrier_runtime.state.errors import Corrupt, InvalidJob, ProtocolViolation
from barrier_runtime.state.kv.store import RECORDS_FILE, MemoryKv, read_records
from barrier_runtime.state.versioned import Format, VersionedDecoder, check_magic


class Note(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    text: str
    version: int = 1


FORMAT = Format("note {}", 3, damaged="write it again", oldest=2)
FIRST = Format("{}: a note", 1, damaged="write it again")
JSON = VersionedDecoder(FORMAT, msgspec.json.Decoder(Note))
MSGPACK = VersionedDecoder(FORMAT, msgspec.msgpack.Decoder(Note))
BOTH = pytest.mark.parametrize("decoder", [JSON, MSGPACK], ids=["json", "msgpack"])


def stored(decoder: VersionedDecoder[Note], content: object) -> bytes:
    return msgspec.json.encode(content) if decoder is JSON else msgspec.msgpack.encode(content)


@BOTH
@pytest.mark.parametrize("version", [2, 3])
def test_every_known_version_is_read(decoder: VersionedDecoder[Note], version: int) -> None:
    assert decoder.decode(stored(decoder, Note("x", version)), "n") == Note("x", version)


@BOTH
def test_newer_version_names_thing_place_version_and_remedy_also_for_unknown_fields(
    decoder: VersionedDecoder[Note],
) -> None:
    """B6"""
    with pytest.raises(InvalidJob) as refused:
        decoder.decode(stored(decoder, {"version": 4, "title": "y"}), "n")
    assert str(refused.value) == (
        "note n has version 4, this release reads 2 to 3: a newer release wrote it: use that release, or a newer one"
    )


@BOTH
@pytest.mark.parametrize("version", [1, 0, -1])
def test_what_no_release_wrote_is_not_called_newer(decoder: VersionedDecoder[Note], version: int) -> None:
    with pytest.raises(InvalidJob, match=rf"^note n has version {version}, this release reads 2 to 3: write it again$"):
        decoder.decode(stored(decoder, {"text": "x", "version": version}), "n")


def test_a_version_that_was_left_out_is_the_first() -> None:
    data = msgspec.json.encode(Note("x"))
    assert data == b'{"text":"x"}'
    assert VersionedDecoder(FIRST, msgspec.json.Decoder(Note)).decode(data, "n") == Note("x")


@BOTH
@pytest.mark.parametrize("wrong", [b"", b"\xff\xff", b"[" * 100_000, b"\x91" * 100_000, pickle.dumps({"version": 2})])
def test_bytes_that_are_no_such_thing_name_thing_place_and_remedy(
    decoder: VersionedDecoder[Note], wrong: bytes
) -> None:
    """B4"""
    with pytest.raises(Corrupt, match=r"^note n is not readable \(.+\): write it again$"):
        decoder.decode(wrong, "n")


@BOTH
@pytest.mark.parametrize("content", [{"version": 2}, {"version": 2, "text": 1}, {"version": 2, "text": "x", "more": 1}])
def test_known_versions_are_read_strictly(decoder: VersionedDecoder[Note], content: object) -> None:
    with pytest.raises(Corrupt, match=r"^note n is not readable"):
        decoder.decode(stored(decoder, content), "n")


def test_a_format_says_what_its_refusal_is() -> None:
    wire = Format("a message", 2, damaged="one release", newer="one release", oldest=2, refusal=ProtocolViolation)
    for other in (1, 3):
        with pytest.raises(
            ProtocolViolation, match=f"^a message has version {other}, this release reads 2: one release$"
        ):
            wire.check(other)
    wire.check(2)


def test_the_version_of_a_file_stands_in_its_first_line() -> None:
    check_magic(b"note-1\nrest", b"note-1\n", FIRST, "n")
    with pytest.raises(InvalidJob, match=r"^n: a note has version 12, this release reads 1: a newer release"):
        check_magic(b"note-12\nrest", b"note-1\n", FIRST, "n")
    for wrong in (b"", b"note-", b"note-1", b"note-\n", b"note-x\n", b"other-1\n", b"note-" + b"1" * 100):
        with pytest.raises(Corrupt, match=r"^n: a note is not readable"):
            check_magic(wrong, b"note-1\n", FIRST, "n")


def test_records_of_a_later_release_are_refused(tmp_path: Path) -> None:
    """B6"""
    kv = MemoryKv()
    kv.write([(b"k", b"v")])
    kv.checkpoint(tmp_path / "copy")
    path = tmp_path / "copy" / RECORDS_FILE
    assert read_records(path).get(b"k") == b"v"
    path.write_bytes(path.read_bytes().replace(b"barrier-kv-1", b"barrier-kv-2"))
    with pytest.raises(InvalidJob, match="has version 2, this release reads 1: a newer release wrote it"):
        read_records(path)
