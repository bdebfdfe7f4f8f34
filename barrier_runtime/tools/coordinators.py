"""Coordinators of a command: the given ones, or those that this user runs on this machine."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from barrier_runtime.state.errors import InvalidJob

_HERE = "default: that of a job of this user on this machine"
Coordinator = Annotated[
    str | None,
    typer.Option(
        help=f"REST address, http://host:port; of several daemons with commas; {_HERE}",
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


def client_of(job: str, address: str | None, token_file: Path | None) -> Any:
    """Client of the given coordinators, or of the only coordinator here that knows `job`.

    Raises `InvalidJob` if no coordinator here knows the job, or several do.
    """
    if address is not None:
        return _given(address, token_file)
    asked = [(client, {each.job for each in client.jobs()}) for client in answering()]
    having = [client for client, jobs in asked if job in jobs]
    if len(having) == 1:
        return having[0]
    if having:
        raise InvalidJob(
            f"{len(having)} coordinators of this machine know job {job}: add --coordinator with one of "
            f"{', '.join(client.url for client in having)}"
        )
    known = sorted(name for _, jobs in asked for name in jobs)
    raise InvalidJob(
        f"no coordinator of this user on this machine knows job {job}; known: {', '.join(known) or 'no job'}. "
        "For another machine or user give --coordinator URL and --token-file FILE"
    )


def clients(address: str | None, token_file: Path | None) -> Sequence[Any]:
    return [_given(address, token_file)] if address is not None else answering()


def answering() -> Sequence[Any]:
    """Clients of the coordinators here that answer. Daemons with the same token and storage share a client.

    Raises `InvalidJob` if there are none.
    """
    from barrier_runtime.coordinator.client.private_directory import coordinators_here
    from barrier_runtime.state.errors import Unavailable

    found: dict[tuple[Path, str], list[str]] = {}
    silent = []
    for each in coordinators_here():
        try:
            storage = _client([each.url], each.token_file).daemon().storage
        except (InvalidJob, Unavailable) as error:  # another coordinator may know the job
            silent.append(str(error))
        else:
            found.setdefault((each.token_file, storage), []).append(each.url)
    if not found:
        raise InvalidJob(
            "no coordinator of this user runs on this machine"
            + "".join(f"; {error}" for error in silent)
            + ": give --coordinator URL and --token-file FILE (a local run has one with ui=True, or --ui)"
        )
    return [_client(urls, file) for (file, _), urls in found.items()]


def _given(address: str, token_file: Path | None) -> Any:
    from barrier_runtime.coordinator.client.failover import addresses
    from barrier_runtime.coordinator.client.private_directory import coordinators_here

    urls = addresses(address)
    known = {each.url: each.token_file for each in coordinators_here()}
    file = token_file or next((known[url] for url in urls if url in known), None)
    if file is None:
        raise InvalidJob(f"--coordinator {address}: add --token-file, the file with its bearer token")
    return _client(urls, file)


def _client(urls: Iterable[str], token_file: Path) -> Any:
    from barrier_runtime.coordinator.client.failover import FailoverClient
    from barrier_runtime.coordinator.client.rest_token import read_token_file

    return FailoverClient(urls, read_token_file(token_file))
