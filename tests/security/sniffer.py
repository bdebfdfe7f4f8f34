"""A listener on the wire: TCP relays that keep every byte that passes."""

import asyncio
import contextlib


class Sniffer:
    """Relays on loopback. Use as an asynchronous context manager; the end closes every connection."""

    def __init__(self) -> None:
        self.streams: list[bytearray] = []  # a buffer per direction of a connection
        self._servers: list[asyncio.Server] = []
        self._pumps: set[asyncio.Task[None]] = set()

    async def before(self, host: str, port: int) -> tuple[str, int]:
        """Returns the address of a relay that leads to `host`:`port`."""

        async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError):
                there, back = await asyncio.open_connection(host, port)
                for source, target in ((reader, back), (there, writer)):
                    self._start(source, target)

        server = await asyncio.start_server(relay, "127.0.0.1", 0)
        self._servers.append(server)
        relayed: tuple[str, int] = server.sockets[0].getsockname()
        return relayed

    def _start(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        pump = asyncio.create_task(self._pump(source, target))
        self._pumps.add(pump)

    async def _pump(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        seen = bytearray()
        self.streams.append(seen)
        try:
            while data := await source.read(65_536):
                seen += data
                target.write(data)
                await target.drain()
        except OSError:
            return  # a peer is gone; the other direction ends with the close below
        finally:
            target.close()

    def heard(self, text: bytes) -> bool:
        return any(text in stream for stream in self.streams)

    async def __aenter__(self) -> "Sniffer":
        return self

    async def __aexit__(self, *_: object) -> None:
        for server in self._servers:
            server.close()
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)
