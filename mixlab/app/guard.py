"""Access control: allowed hosts and origins, limits on requests, and security headers."""

from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mixlab.app.arrivals import Arrivals, BodyError, drain, too_much

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
    """Wraps the whole application. Refuses names that only DNS rebinding would use, other sites' pages, and floods.

    A request counts from when its body has arrived until its answer begins: slow clients take no place.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        hosts: frozenset[str],
        max_body: int,
        max_question: int,
        max_requests: int,
        max_arriving: int,
    ) -> None:
        self.app, self.hosts, self.max_requests = app, hosts, max_requests
        self.max_body, self.max_question = max_body, max_question  # bytes of files, and of JSON
        self.num_requests = 0
        self._arrivals = Arrivals(max_arriving)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                extra = [(name.encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]
                message = {**message, "headers": [*message["headers"], *extra]}
            await send(message)

        headers = _headers(scope)
        refusal = self._refusal(headers, self._limit(scope))
        if refusal is not None:
            if refusal.status_code == 413:
                await drain(receive)
            await refusal(scope, receive, send_safely)
            return
        if headers.get("content-length", ["0"]) == ["0"] and "transfer-encoding" not in headers:
            await self._answer(scope, receive, send_safely)
            return
        try:
            async with self._arrivals.whole_body(receive, self._limit(scope)) as body:
                if body is not None:
                    await self._answer(scope, _first(body, receive), send_safely)
        except BodyError as error:
            response = error_response(error.status, str(error), headers={"connection": "close", "retry-after": "1"})
            await response(scope, receive, send_safely)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.num_requests >= self.max_requests:
            refusal = error_response(
                503,
                f"{self.num_requests} requests are open, which is the limit; try again soon",
                headers={"retry-after": "1"},
            )
            await refusal(scope, receive, send)
            return
        self.num_requests += 1
        is_counted = True

        def leave() -> None:
            nonlocal is_counted
            self.num_requests -= is_counted
            is_counted = False

        async def send_and_leave(message: Message) -> None:
            leave()  # what is left is the client's own time
            await send(message)

        try:
            await self.app(scope, receive, send_and_leave)
        finally:
            leave()

    def _refusal(self, headers: dict[str, list[str]], limit: int) -> JSONResponse | None:
        for name in ("host", "origin", "content-length"):
            if len(headers.get(name, [])) > 1:
                return error_response(400, f"the request has several headers {name!r}; send one")
        host = headers.get("host", [""])[0]
        if not self._is_known(host):
            return error_response(
                421, f"this page is not served under the name {host!r}; use localhost or an IP address"
            )
        if "origin" in headers and (refusal := _refuse_origin(headers["origin"][0], host)) is not None:
            return refusal
        length = headers.get("content-length", ["0"])[0]
        if not (length.isascii() and length.isdecimal()) or int(length[:20]) > limit:
            return error_response(413, too_much(limit), headers={"connection": "close"})
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


def _refuse_origin(origin: str, host: str) -> JSONResponse | None:
    """`null` is a page without an address; everything else is scheme://host, with a port perhaps."""
    try:
        parts = urlsplit(origin)
        is_address = bool(parts.scheme and parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        is_address = False
    if not is_address and origin != "null":
        return error_response(400, f"the origin {origin!r} is not of the form http://host:port; open the page itself")
    if parts.netloc != host:
        return error_response(403, f"requests from pages of {origin!r} are refused; open the page itself")
    return None


def _headers(scope: Scope) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, value in scope["headers"]:
        found.setdefault(name.decode("latin-1"), []).append(value.decode("latin-1"))
    return found


def _first(body: bytes, receive: Receive) -> Receive:
    """The whole body in one message, then what the client does after it: it can only leave."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_next() -> Message:
        return messages.pop() if messages else await receive()

    return receive_next
