"""FileIO with few requests for metadata files, if the catalog names no other FileIO.

pyiceberg's own FileIO needs three requests per file. Metadata files have unique names: this process keeps files that it
wrote, and knows that a new file is missing.
"""

import threading
from collections import OrderedDict
from io import BytesIO

import pyarrow.fs as pafs
from pyiceberg.io import InputFile, InputStream, OutputStream
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

QUICK_FILE_IO = f"{__name__}.QuickFileIO"
_LARGEST = 4 << 20  # bytes of a file that is kept …
_MOST = 16 << 20  # … and of all kept files of this process


class _Written:
    def __init__(self) -> None:
        self._files: OrderedDict[str, bytes] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def keep(self, location: str, data: bytes) -> None:
        if len(data) > _LARGEST:
            return
        with self._lock:
            self._bytes += len(data) - len(self._files.pop(location, b""))
            self._files[location] = data
            while self._bytes > _MOST:
                self._bytes -= len(self._files.popitem(last=False)[1])

    def get(self, location: str) -> bytes | None:
        return self._files.get(location)

    def drop(self, location: str) -> None:
        with self._lock:
            self._bytes -= len(self._files.pop(location, b""))


_written = _Written()


class QuickFileIO(PyArrowFileIO):  # type: ignore[misc]  # the library is not typed
    def _initialize_fs(self, scheme: str, netloc: str | None = None) -> pafs.FileSystem:
        made = super()._initialize_fs(scheme, netloc)
        if not isinstance(made, pafs.S3FileSystem):
            return made
        remake, (settings,) = made.__reduce__()
        return remake({**settings, "allow_delayed_open": True})  # a small file is then a single request

    def new_input(self, location: str) -> PyArrowFile:
        file = super().new_input(location)
        return _as(_KnownFile, file) if _written.get(location) is not None else file

    def new_output(self, location: str) -> PyArrowFile:
        file = super().new_output(location)
        return _as(_NewFile, file) if _is_metadata(location) else file

    def delete(self, location: object) -> None:
        _written.drop(location if isinstance(location, str) else location.location)  # type: ignore[attr-defined]
        super().delete(location)


def _is_metadata(location: str) -> bool:
    """Metadata files have a UUID in their name."""
    return location.endswith((".avro", ".metadata.json"))


def _as(kind: type[PyArrowFile], file: PyArrowFile) -> PyArrowFile:
    return kind(file.location, file._path, file._filesystem, file._buffer_size)


class _KnownFile(PyArrowFile):  # type: ignore[misc]
    def __len__(self) -> int:
        known = _written.get(self.location)
        return super().__len__() if known is None else len(known)

    def exists(self) -> bool:
        return True if _written.get(self.location) is not None else super().exists()

    def open(self, seekable: bool = True) -> InputStream:
        known = _written.get(self.location)
        return super().open(seekable) if known is None else BytesIO(known)


class _NewFile(_KnownFile):
    def exists(self) -> bool:
        return False  # nobody else writes under this name

    def to_input_file(self) -> InputFile:
        return _as(_KnownFile, self)

    def create(self, overwrite: bool = False) -> OutputStream:
        return _Kept(self.location, super().create(overwrite=True))


class _Kept(BytesIO):
    """Buffer that is written as a whole on close."""

    def __init__(self, location: str, stream: OutputStream) -> None:
        super().__init__()
        self._location = location
        self._target = stream

    def close(self) -> None:
        if self.closed:
            return
        data = self.getvalue()
        super().close()
        with self._target as target:
            target.write(data)
        _written.keep(self._location, data)
