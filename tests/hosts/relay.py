"""TCP relay that delays: `python -m tests.hosts.relay ADDRESS:PORT TARGET:PORT FILE`.

FILE holds the delay of each direction in milliseconds, read for each piece of data, so that a delay can begin and end
while connections are open. Pieces keep their order, and a delay does not limit the bandwidth.
"""

import asyncio
import contextlib
import sys
from pathlib import Path

from barrier_runtime.state.hosts import split

_PIECE = 1 << 16


class Relay:
    def __init__(self, target: str, delay: Path) -> None:
        self._host, self._port = split(target)
        self._delay = delay

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(self._host, self._port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(self._forward(reader, far_writer), self._forward(far_reader, writer))

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        writing = asyncio.create_task(_write(pieces, writer))
        loop = asyncio.get_running_loop()
        data = b"."
        while data:
            try:
                data = await reader.read(_PIECE)
            except OSError:
                data = b""
            pieces.put_nowait((loop.time() + self._delay_s(), data))
        await writing

    def _delay_s(self) -> float:
        with contextlib.suppress(FileNotFoundError, ValueError):  # absent, or being written: no delay
            return float(self._delay.read_text()) / 1000
        return 0.0


async def _write(pieces: "asyncio.Queue[tuple[float, bytes]]", writer: asyncio.StreamWriter) -> None:
    loop = asyncio.get_running_loop()
    data = b"."
    with contextlib.suppress(OSError):
        while data:
            due_s, data = await pieces.get()
            await asyncio.sleep(max(0.0, due_s - loop.time()))
            writer.write(data)
            await writer.drain()
    writer.close()


async def _main(listen: str, target: str, delay: str) -> None:
    host, port = split(listen)
    relay = Relay(target, Path(delay))
    async with await asyncio.start_server(relay.serve, host, port, backlog=512) as server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
