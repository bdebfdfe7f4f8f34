"""Page and REST interface of a job in this process, for `ui=True`, on the job's loop."""

import asyncio
import contextlib
import os
import secrets
import socket
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from barrier_runtime.coordinator.client.client import CoordinatorClient
from barrier_runtime.coordinator.client.private_directory import PrivateDirectory, write_private
from barrier_runtime.coordinator.client.rest_token import Token, daemon_key
from barrier_runtime.coordinator.server.jobs import JobDirectory
from barrier_runtime.coordinator.server.runner import JobRunner
from barrier_runtime.launch.outcome import tell_page
from barrier_runtime.state.errors import missing_extra
from barrier_runtime.state.sockets import listening_on
from barrier_runtime.state.store.object_store import ObjectStore

_LOOPBACK = "127.0.0.1"
_REQUEST_S = 10.0  # for a request to arrive
_LEAVE_S = 5.0  # for answers under way at the end of the job

T = TypeVar("T")


def _nobody(client: CoordinatorClient) -> None:
    """Ignores the client: only people use the page."""


async def with_page(
    run: Callable[[], Awaitable[T]],
    runner: JobRunner,
    store: ObjectStore,
    *,
    ui: bool,
    serves: Callable[[CoordinatorClient], None] = _nobody,
) -> T:
    if not ui:
        return await run()
    async with page_of(runner, store) as client:
        serves(client)
        await asyncio.to_thread(tell_page, client, runner.spec.job)
        return await run()


@asynccontextmanager
async def page_of(runner: JobRunner, store: ObjectStore) -> AsyncIterator[CoordinatorClient]:
    """Raises `InvalidJob` if the packages of `[coordinator]` are missing."""
    try:
        from barrier_runtime.coordinator.server.rest import ControlAddress, PageAddress
        from barrier_runtime.coordinator.server.serving import ServerOptions, rest_server
    except ImportError as error:
        raise missing_extra("the page", "coordinator", error) from None
    private = PrivateDirectory()
    web = listening_on(_LOOPBACK, 0)
    try:
        token, file = secrets.token_hex(32), private.path / "driver.token"
        write_private(file, token)
        directory = JobDirectory(
            store, daemon_key=daemon_key(token), leader=uuid.uuid4().hex, host=socket.gethostname()
        )
        directory.know(runner)
        url = f"http://{_LOOPBACK}:{web.getsockname()[1]}"
        server = rest_server(
            directory,
            ControlAddress(_LOOPBACK, 0),  # slots of this process need no address
            Token(file.stem, token.encode()),
            os.getpid(),
            PageAddress(url, str(file)),
            ServerOptions(_REQUEST_S),
        )
        server.capture_signals = contextlib.nullcontext  # type: ignore[assignment]  # signals are the program's
        web.setblocking(False)
        serving = asyncio.create_task(server.serve(sockets=[web]))
        private.announce(url, file)
        try:
            yield CoordinatorClient(url, token)
        finally:
            server.leave()
            await asyncio.wait([serving], timeout=_LEAVE_S)
            serving.cancel()
            await asyncio.wait([serving], timeout=_LEAVE_S)
    finally:
        web.close()
        private.remove()
