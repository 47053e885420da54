"""Connections of a local page: those that make no progress are closed, so that they cannot take all there are."""

import asyncio
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_S = 10.0  # from the end of one request to the header of the next
STALL_S = 20.0  # for a client that takes nothing of its answer
MAX_CONNECTIONS = 512  # beyond it, the one without progress for longest is closed


def server_of(application: ASGIApp, **options: Any) -> uvicorn.Server:
    """A server of the page; `options` as uvicorn has them."""
    given = {"log_level": "warning", "access_log": False, "timeout_graceful_shutdown": 2, **options}
    return uvicorn.Server(uvicorn.Config(application, http=Connection, **given))


class Connection(H11Protocol):
    """uvicorn's, which waits forever for a header, and for a client to take its answer."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._stage, self._unsent, self.moved_at = self._current_stage(), 0, self.loop.time()
        others = [each for each in self.connections if isinstance(each, Connection) and each is not self]
        if len(others) >= MAX_CONNECTIONS:
            min(others, key=lambda each: each.moved_at).transport.abort()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        super().connection_lost(exc)

    def _current_stage(self) -> tuple[object, bool]:
        """The request, and whether its answer is complete, so that the header of the next one is awaited."""
        return self.cycle, self.cycle is None or self.cycle.response_complete

    def _watch(self) -> None:
        now, stage, unsent = self.loop.time(), self._current_stage(), self.transport.get_write_buffer_size()
        if stage != self._stage or unsent < self._unsent:
            self.moved_at = now
        self._stage, self._unsent = stage, unsent
        patience = STALL_S if unsent else HEADER_S if stage[1] else float("inf")  # bodies and answers have their own
        if now - self.moved_at > patience:
            self.transport.abort()
        self._timer = self.loop.call_later(min(1.0, HEADER_S / 4, STALL_S / 4), self._watch)
