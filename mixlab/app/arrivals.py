"""Bodies of requests on their way: each has a deadline and a minimum rate, and all together a limit in bytes.

A request takes a place on the server only when its body is there: slow clients wait for themselves.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.types import Message, Receive

FIRST_S = 5.0  # for the first bytes; after that the rate counts
MIN_RATE = 16 * 2**10  # bytes per second: a poor mobile network has more
BODY_S = 120.0  # for a whole body, however steadily it comes
DRAIN_S = 1.0


class BodyError(Exception):
    """A body that is not taken: status and reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class _Arrival:
    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.num_bytes = 0
        self.is_given_up = False
        self._start = self.moved_at = asyncio.get_running_loop().time()
        self._mark = 0
        self.timeout = asyncio.timeout_at(self.deadline)

    @property
    def deadline(self) -> float:
        return self._start + min(BODY_S, FIRST_S + self.num_bytes / MIN_RATE)

    def add(self, part: bytes) -> None:
        self.parts.append(part)
        self.num_bytes += len(part)
        if self.num_bytes - self._mark >= MIN_RATE:  # a few bytes are no progress
            self._mark, self.moved_at = self.num_bytes, asyncio.get_running_loop().time()


class Arrivals:
    """All bodies that are arriving or in use. Without room for more, the one longest without progress is given up."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes, self.num_bytes = max_bytes, 0
        self._on_their_way: set[_Arrival] = set()

    @asynccontextmanager
    async def whole_body(self, receive: Receive, limit: int) -> AsyncIterator[bytes | None]:
        """The body, None where the client has gone; its bytes count until the context ends."""
        arrival = _Arrival()
        try:
            yield await self._arrived(arrival, receive, limit)
        finally:
            self.num_bytes -= arrival.num_bytes

    async def _arrived(self, arrival: _Arrival, receive: Receive, limit: int) -> bytes | None:
        self._on_their_way.add(arrival)
        try:
            async with arrival.timeout:
                while (message := await receive())["type"] != "http.disconnect":
                    self._add(arrival, message.get("body", b""))
                    if arrival.is_given_up:
                        raise TimeoutError
                    if arrival.num_bytes > limit:
                        break
                    if not message.get("more_body"):
                        return b"".join(arrival.parts)
                    arrival.timeout.reschedule(arrival.deadline)
                else:
                    return None
        except TimeoutError as error:
            if arrival.is_given_up:
                raise BodyError(503, "too many uploads at once; try again soon") from error
            raise BodyError(
                408, f"the upload was too slow; it needs {MIN_RATE // 2**10} KB per second and at most {BODY_S:.0f} s"
            ) from error
        finally:
            self._on_their_way.discard(arrival)
        await _drain(receive, message)
        raise BodyError(413, too_much(limit))

    def _add(self, arrival: _Arrival, part: bytes) -> None:
        arrival.add(part)
        self.num_bytes += len(part)
        if self.num_bytes > self.max_bytes:
            slowest = min(self._on_their_way, key=lambda each: each.moved_at)
            slowest.is_given_up = True
            self._on_their_way.discard(slowest)
            self.num_bytes -= slowest.num_bytes
            slowest.parts, slowest.num_bytes = [], 0
            if slowest is not arrival:
                slowest.timeout.reschedule(0)


async def _drain(receive: Receive, message: Message) -> None:
    """Read and discard a little more: a client whose upload is cut off may never see the answer."""
    try:
        async with asyncio.timeout(DRAIN_S):
            while message.get("more_body"):
                message = await receive()
    except TimeoutError:
        return


async def drain(receive: Receive) -> None:
    await _drain(receive, {"type": "http.request", "more_body": True})


def too_much(limit: int) -> str:
    return f"the upload exceeds the limit of {limit / 2**20:.0f} MB; send a smaller image"
