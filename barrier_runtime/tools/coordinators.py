"""Coordinators of a command: given ones, or this user's on this machine."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import typer

from barrier_runtime.state.errors import InvalidJob

_LOOK_S = 1.0
_BEFORE_SLOTS = ("loading", "resuming", "fencing")
_HERE = "default: that of a job of this user on this machine"
Coordinator = Annotated[
    str | None,
    typer.Option(
        help=f"REST address, http(s)://host:port; of several daemons with commas; {_HERE}",
        envvar="BARRIER_RUNTIME_COORDINATOR",
        show_envvar=False,
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        help="file with the bearer token of --coordinator",
        envvar="BARRIER_RUNTIME_TOKEN_FILE",
        show_envvar=False,
    ),
]

Ca = Annotated[
    str | None,
    typer.Option(
        help="PEM file with the authorities of an https --coordinator; default: the certificate of the token, or the "
        "system's authorities",
        envvar="BARRIER_RUNTIME_CA",
        show_envvar=False,
    ),
]


def client_of(job: str, address: str | None, token_file: Path | None, ca: str | None = None) -> Any:
    """Client of the given coordinators, or of the only coordinator here that knows `job`.

    Raises `UnknownJob` if there is none.
    """
    from barrier_runtime.coordinator.client.client import UnknownJob

    if address is not None:
        return _given(address, token_file, ca)
    asked = answering()
    having = [client for client, jobs in asked if job in {each.job for each in jobs}]
    if len(having) == 1:
        return having[0]
    if having:
        raise InvalidJob(
            f"{len(having)} coordinators of this machine know job {job}: add --coordinator with one of "
            f"{', '.join(client.url for client in having)}"
        )
    known = sorted(each.job for _, jobs in asked for each in jobs)
    raise UnknownJob(
        f"no coordinator of this user on this machine knows job {job}; known: {', '.join(known) or 'no job'}. "
        "For another machine or user give --coordinator URL and --token-file FILE"
    )


def client_once_known(
    job: str, wait_s: float, say: Callable[[str], None], address: str | None, token_file: Path | None, ca: str | None
) -> Any:
    """As `client_of`, but waits `wait_s` seconds until `job`, whose program may be starting, admits slots."""
    from barrier_runtime.coordinator.client.client import UnknownJob
    from barrier_runtime.state.errors import Unavailable

    end, told = time.monotonic() + wait_s, False
    while True:
        try:
            client = client_of(job, address, token_file, ca)
            if (status := client.status(job)).phase in _BEFORE_SLOTS:
                raise Unavailable(f"the job is {status.phase}")
            return client
        except (UnknownJob, Unavailable) as error:
            if time.monotonic() >= end:
                raise
            if not told:
                told = True
                say(f"job {job} takes no slots yet; waiting {wait_s:g} s ({error})")
            time.sleep(_LOOK_S)


def all_jobs(address: str | None, token_file: Path | None, ca: str | None = None) -> list[Any]:
    if address is not None:
        return list(_given(address, token_file, ca).jobs())
    return [job for _, jobs in answering() for job in jobs]


def answering() -> list[tuple[Any, Sequence[Any]]]:
    """Clients and jobs of all coordinators here, a client per token and storage.

    Raises `UnknownJob` if none answers.
    """
    from barrier_runtime.coordinator.client.client import UnknownJob
    from barrier_runtime.coordinator.client.private_directory import coordinators_here
    from barrier_runtime.state.errors import Unavailable

    urls_of: dict[tuple[Path, Any, str], list[str]] = {}
    silent: list[str] = []
    found = []
    for each in coordinators_here():
        try:
            storage = _client([each.url], each.token_file, each.trust).daemon().storage
        except (InvalidJob, Unavailable) as error:  # another may know the job
            silent.append(str(error))
        else:
            urls_of.setdefault((each.token_file, each.trust, storage), []).append(each.url)
    for (file, trust, _), urls in urls_of.items():
        client = _client(urls, file, trust)
        try:
            found.append((client, client.jobs()))
        except Unavailable as error:  # ended meanwhile
            silent.append(str(error))
    if not found:
        raise UnknownJob(
            "no coordinator of this user runs on this machine"
            + "".join(f"; {error}" for error in silent)
            + ": give --coordinator URL and --token-file FILE (a local run has one with ui=True, or --ui)"
        )
    return found


def _given(address: str, token_file: Path | None, ca: str | None) -> Any:
    from barrier_runtime.coordinator.client.client import addresses
    from barrier_runtime.coordinator.client.private_directory import coordinators_here
    from barrier_runtime.coordinator.client.trust import Trust

    urls = addresses(address)
    known = {each.url: each for each in coordinators_here()}
    here = [known[url] for url in urls if url in known]
    announced = {} if ca else {each.url: each.trust for each in here}  # a certificate belongs to its address only
    file = token_file or next((each.token_file for each in here), None)
    if file is None:
        raise InvalidJob(f"--coordinator {address}: add --token-file, the file with its bearer token")
    return _client(urls, file, Trust(ca or ""), announced)


def _client(
    urls: Iterable[str], token_file: Path, trust: Any, trust_of: Mapping[str, Any] = MappingProxyType({})
) -> Any:
    from barrier_runtime.coordinator.client.client import FailoverClient
    from barrier_runtime.coordinator.client.rest_token import read_token_file

    return FailoverClient(urls, read_token_file(token_file), trust, trust_of)
