"""The page and its HTTP API. Every answer is JSON or a picture; every refusal gives a reason."""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Iterable
from concurrent.futures import CancelledError as FutureCancelledError
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Any

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from mixlab.app.exhibits import find_figure, media_type
from mixlab.app.guard import Guard, error_response
from mixlab.app.jobs import Answer, CancelledError, Jobs, Progress, QueueFullError, Ticket
from mixlab.app.laboratory import Laboratory
from mixlab.app.picture_routes import MAX_PIXELS, add_pictures
from mixlab.app.pictures import PictureStore, UnknownPictureError
from mixlab.app.questions import SIDE, AnyQuestion, to_json
from mixlab.errors import InputError, WorkError, is_out_of_memory

STATIC = Path(__file__).parent / "static"
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
}
MAX_BODY = 20 * 2**20
MAX_QUESTION = 2**20
MAX_ARRIVING = 8 * MAX_BODY
MAX_WAIT_MS = 2000
LOGGER = logging.getLogger("mixlab.app")


def create_app(
    laboratory: Laboratory,
    *,
    hosts: Iterable[str] = (),
    workers: int = 2,
    max_open: int = 256,
    max_requests: int = 512,
    picture_bytes: int = 128 * 2**20,
    patience_s: float = 5.0,
) -> Guard:
    """The page over a laboratory. `hosts` are names it answers to beside localhost and plain addresses.

    A question that no one asks about for `patience_s` seconds is dropped.
    """
    jobs = Jobs(workers=workers, max_open=max_open, patience_s=patience_s)
    pictures = PictureStore(laboratory.samples, max_bytes=picture_bytes)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        sweeper = asyncio.create_task(_sweep(jobs))
        yield
        sweeper.cancel()
        jobs.close()

    web = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    _add_errors(web)
    _add_page(web)
    _add_about(web, laboratory)
    _add_exhibits(web, laboratory)
    add_pictures(web, pictures)
    _add_questions(web, laboratory, pictures, jobs)
    names = frozenset({"localhost", *hosts})
    return Guard(
        web,
        hosts=names,
        max_body=MAX_BODY,
        max_question=MAX_QUESTION,
        max_requests=max_requests,
        max_arriving=MAX_ARRIVING,
    )


def _add_page(web: FastAPI) -> None:
    # Read once: a name from outside is looked up in this table and never becomes a path.
    files = {file.name: (file.read_bytes(), MEDIA_TYPES[file.suffix]) for file in STATIC.iterdir() if file.is_file()}

    @web.get("/")
    async def page() -> Response:
        return _file("index.html")

    @web.get("/static/{name}")
    async def static(name: str) -> Response:
        if name not in files:
            raise HTTPException(404, f"there is no file {name!r} here")
        return _file(name)

    def _file(name: str) -> Response:
        content, media_type = files[name]
        return Response(content, media_type=media_type, headers={"cache-control": "no-cache"})


def _add_about(web: FastAPI, laboratory: Laboratory) -> None:
    about = {
        "session": secrets.token_hex(8),  # another one after a restart
        "models": [asdict(card) for card in laboratory.models],
        "maps": [asdict(card) for card in laboratory.maps],
        "samples": [{"id": s.id, "label": s.label, "has_mask": s.mask is not None} for s in laboratory.samples],
        "limits": {"bytes": MAX_BODY, "pixels": MAX_PIXELS, "mask_side": SIDE},
    }

    @web.get("/api/about")
    async def tell_about() -> Response:
        return JSONResponse(about)

    @web.get("/api/health")
    async def tell_health() -> Response:
        return JSONResponse({"session": about["session"]})


def _add_exhibits(web: FastAPI, laboratory: Laboratory) -> None:
    @web.get("/api/exhibits")
    async def tell_exhibits() -> Response:
        return JSONResponse({"exhibits": [exhibit.to_json() for exhibit in laboratory.exhibits]})

    @web.get("/api/exhibits/{number}/{figure}")
    async def show_figure(number: int, figure: int) -> Response:
        file = find_figure(laboratory.exhibits, number, figure)
        if file is None:
            raise HTTPException(404, f"there is no picture {figure} of result {number} here")
        content = await asyncio.to_thread(file.read_bytes)
        return Response(content, media_type=media_type(file), headers={"cache-control": "no-cache"})


def _add_questions(web: FastAPI, laboratory: Laboratory, pictures: PictureStore, jobs: Jobs) -> None:
    models = {card.id for card in laboratory.models}

    @web.post("/api/questions")
    async def ask(question: AnyQuestion, request: Request, wait_ms: int = Query(400, ge=0, le=MAX_WAIT_MS)) -> Response:
        if question.model not in models:
            raise HTTPException(404, f"there is no model {question.model!r} here; choose one of {', '.join(models)}")
        picture = pictures.find(question.picture)

        def run(progress: Progress) -> Answer:
            start = perf_counter()
            answer = to_json(laboratory.answer(question, picture, progress))
            return {"answer": answer, "work_ms": round(1000 * (perf_counter() - start), 1)}

        ticket = jobs.submit(question.model_dump_json(), run, is_long=question.is_long)
        return await _wait(ticket, wait_ms, request)

    @web.get("/api/questions/{ticket_id}")
    async def ask_again(ticket_id: str, request: Request, wait_ms: int = Query(400, ge=0, le=MAX_WAIT_MS)) -> Response:
        return await _wait(_ticket(ticket_id), wait_ms, request)

    @web.delete("/api/questions/{ticket_id}")
    async def cancel(ticket_id: str) -> Response:
        if ticket := jobs.find(ticket_id):  # whose request was hung up before has left already
            jobs.leave(ticket)
        return JSONResponse({"state": "cancelled"})

    def _ticket(ticket_id: str) -> Ticket:
        ticket = jobs.find(ticket_id)
        if ticket is None:
            raise HTTPException(
                404, f"there is no ticket {ticket_id!r}: it was answered, cancelled or dropped; ask again"
            )
        return ticket

    async def _wait(ticket: Ticket, wait_ms: int, request: Request) -> Response:
        """The answer if it comes in time; else how far the work is. Who hangs up has left."""
        future = ticket.work.future
        try:
            with jobs.awaiting(ticket):
                is_done = await _is_done(future, wait_ms / 1000, request)
        except ClientDisconnect:
            jobs.leave(ticket)
            return Response(status_code=204)  # nobody reads it
        if not is_done:
            progress = ticket.work.progress
            body = {"id": ticket.id, "state": "working", "share": progress.share, "note": progress.note}
            return JSONResponse(body, 202)
        jobs.leave(ticket)
        try:
            return JSONResponse({"state": "done", **future.result()})
        except (CancelledError, FutureCancelledError):
            return error_response(409, "this work was cancelled; ask again")


def _add_errors(web: FastAPI) -> None:
    def said(status: int) -> Any:
        async def answer(_: Request, error: Exception) -> Response:
            return error_response(status, str(error))

        return answer

    @web.exception_handler(HTTPException)
    async def refused(_: Request, error: HTTPException) -> Response:
        return error_response(error.status_code, str(error.detail))

    @web.exception_handler(RequestValidationError)
    async def malformed(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"] if part != "body")
        return error_response(422, f"{place or 'the request'}: {first['msg'].removeprefix('Value error, ')}")

    @web.exception_handler(QueueFullError)
    async def full(_: Request, error: QueueFullError) -> Response:
        return error_response(503, "the server is busy; try again in a second", headers={"retry-after": "1"})

    @web.exception_handler(Exception)
    async def broken(request: Request, error: Exception) -> Response:
        LOGGER.error("%s %s failed", request.method, request.url.path, exc_info=error)
        if is_out_of_memory(error):
            return error_response(507, "memory was not enough for this; start the page with a smaller --image")
        return error_response(500, "the server failed; its terminal shows the error")

    web.add_exception_handler(UnknownPictureError, said(404))
    web.add_exception_handler(InputError, said(422))
    web.add_exception_handler(WorkError, said(422))  # such as a plugin's map of another shape


async def _is_done(future: Future[Answer], timeout_s: float, request: Request) -> bool:
    """Wait until it is done, the time is over or the client has gone, which raises ClientDisconnect."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()

    def tell(_: Future[Answer]) -> None:
        with suppress(RuntimeError):  # the server stopped meanwhile
            loop.call_soon_threadsafe(done.set)

    async def listen() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        done.set()

    future.add_done_callback(tell)
    listening = asyncio.create_task(listen())
    with suppress(TimeoutError):
        await asyncio.wait_for(done.wait(), timeout_s)
    if listening.done() and not future.done():
        raise ClientDisconnect
    listening.cancel()
    return future.done()


async def _sweep(jobs: Jobs) -> None:
    while True:
        await asyncio.sleep(1)
        jobs.drop_abandoned()
