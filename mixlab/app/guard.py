"""Access control: allowed hosts and origins, limits on requests, and security headers."""

import asyncio
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

DRAIN_S = 1.0
SECURITY_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


def error_response(status: int, message: str, *, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": {"status": status, "message": message}}, status, headers=headers)


class Guard:
    """Wraps the whole application. Refuses names that only DNS rebinding would use, other sites' pages, and floods."""

    def __init__(
        self, app: ASGIApp, *, hosts: frozenset[str], max_body: int, max_question: int, max_requests: int
    ) -> None:
        self.app, self.hosts, self.max_requests = app, hosts, max_requests
        self.max_body, self.max_question = max_body, max_question  # bytes of files, and of JSON
        self.num_requests = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                extra = [(name.encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]
                message = {**message, "headers": [*message["headers"], *extra]}
            await send(message)

        refusal = self._refusal(scope)
        if refusal is not None:
            if refusal.status_code == 413:
                await drain(receive)
            await refusal(scope, receive, send_safely)
            return
        self.num_requests += 1
        try:
            await self.app(scope, self._counted(receive, self._limit(scope)), send_safely)
        finally:
            self.num_requests -= 1

    def _refusal(self, scope: Scope) -> JSONResponse | None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        host = headers.get("host", "")
        if not self._is_known(host):
            return error_response(
                421, f"this page is not served under the name {host!r}; use localhost or an IP address"
            )
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != host:
            return error_response(403, f"requests from pages of {origin!r} are refused; open the page itself")
        length = headers.get("content-length", "0")
        limit = self._limit(scope)
        if not length.isdigit() or int(length) > limit:
            return error_response(413, too_much(limit), headers={"connection": "close"})
        if self.num_requests >= self.max_requests:
            return error_response(
                503,
                f"{self.num_requests} requests are open, the most allowed; try again soon",
                headers={"retry-after": "1"},
            )
        return None

    def _is_known(self, host: str) -> bool:
        """A known host name or an IP address; DNS rebinding cannot change an address."""
        try:
            name = urlsplit(f"//{host}").hostname or ""
            return name in self.hosts or bool(ip_address(name))
        except ValueError:
            return False

    def _limit(self, scope: Scope) -> int:
        return self.max_body if scope["path"].startswith("/api/pictures") else self.max_question

    def _counted(self, receive: Receive, limit: int) -> Receive:
        received = 0

        async def receive_some() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > limit:
                if message.get("more_body"):
                    await drain(receive)
                raise HTTPException(413, too_much(limit))
            return message

        return receive_some


async def drain(receive: Receive) -> None:
    """Read and discard a little more: a client whose upload is cut off may never see the answer."""
    try:
        async with asyncio.timeout(DRAIN_S):
            while (await receive()).get("more_body"):
                pass
    except TimeoutError:
        return


def too_much(limit: int) -> str:
    return f"more than {limit / 2**20:.0f} MB were sent, the limit here; send less, such as a smaller image"
