"""A proxy before an HTTP server that breaks connections when the test says so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit


class BreakingProxy:
    """Passes requests on, and loses answers."""

    def __init__(self, server: str) -> None:
        address = urlsplit(server)
        self._server = address.hostname, address.port
        self.lose_answers = 0
        """So many answers are lost: the server has done what was asked."""
        self.requests = 0
        self.url = ""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Listen within the block; later again at the same address."""
        listening = await asyncio.start_server(self._serve, "127.0.0.1", urlsplit(self.url).port or 0)
        self.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        async with listening:
            yield

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port = self._server
        server_reader, server_writer = await asyncio.open_connection(host, port)
        forward = asyncio.create_task(self._forward(reader, server_writer))
        try:
            while answer := await server_reader.read(1 << 16):
                if self.lose_answers > 0:
                    self.lose_answers -= 1
                    break
                writer.write(answer)
                await writer.drain()
        except OSError:
            pass
        finally:
            forward.cancel()
            writer.close()
            server_writer.close()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            self.requests += data.count(b"HTTP/1.1\r\n")
            writer.write(data)
            await writer.drain()
        writer.close()
