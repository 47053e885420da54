"""The API of pictures: uploads, what models see of them, and their masks."""

import asyncio
import threading
from typing import Any, get_args

from fastapi import FastAPI, Query, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from mixlab.app.pictures import (
    MaskValues,
    PictureStore,
    decode_mask,
    decode_picture,
    seen_mask,
    seen_part,
    seen_picture,
    to_png,
)
from mixlab.app.questions import SIDE, encode_runs
from mixlab.choices import SHOWN_FIT, Fit

MAX_UPLOADS = 4
MAX_PIXELS = 64_000_000  # more than a telephone's 50 million


def add_pictures(web: FastAPI, pictures: PictureStore) -> None:
    # Bounds the memory: so many files at once, and one of them decoded.
    places, one_at_a_time = asyncio.Semaphore(MAX_UPLOADS), threading.Lock()

    @web.post("/api/pictures", status_code=201)
    async def add_picture(request: Request) -> Response:
        def decode(data: bytes) -> dict[str, Any]:
            with one_at_a_time:
                picture = pictures.add(decode_picture(data, max_pixels=MAX_PIXELS))
            height, width = picture.pixels.shape[:2]
            return {"id": picture.id, "width": width, "height": height}

        data = await _body(request)
        async with places:
            return JSONResponse(await asyncio.to_thread(decode, data), 201)

    @web.get("/api/pictures/{picture_id}")
    async def show_picture(picture_id: str, fit: Fit = SHOWN_FIT, size: int = Query(512, ge=32, le=1024)) -> Response:
        picture = pictures.find(picture_id)
        png = await asyncio.to_thread(lambda: to_png(seen_picture(picture.pixels, size, fit)))
        return Response(png, media_type="image/png", headers={"cache-control": "no-store"})  # names return, next time

    @web.get("/api/pictures/{picture_id}/fits")
    async def show_fits(picture_id: str) -> Response:
        pixels = pictures.find(picture_id).pixels
        return JSONResponse({fit: seen_part(pixels, SIDE, fit) for fit in get_args(Fit)})

    @web.get("/api/pictures/{picture_id}/mask")
    async def show_mask(picture_id: str, fit: Fit = SHOWN_FIT) -> Response:
        mask = pictures.find(picture_id).mask
        if mask is None:
            raise HTTPException(404, f"{picture_id!r} comes without a mask; draw one or upload one")
        return JSONResponse(_runs(mask, fit))

    @web.post("/api/pictures/{picture_id}/mask")
    async def read_mask(picture_id: str, request: Request, fit: Fit = SHOWN_FIT) -> Response:
        picture = pictures.find(picture_id)

        def decode(data: bytes) -> dict[str, Any]:
            with one_at_a_time:
                mask = decode_mask(data, picture, max_pixels=MAX_PIXELS)
            return _runs(mask, fit)

        data = await _body(request)
        async with places:
            return JSONResponse(await asyncio.to_thread(decode, data))


def _runs(mask: MaskValues, fit: Fit) -> dict[str, Any]:
    """What a fit shows of a mask, and all of it: the page keeps what another fit shows."""
    return {"mask": encode_runs(seen_mask(mask, SIDE, fit)), "whole": encode_runs(seen_mask(mask, SIDE, "whole"))}


async def _body(request: Request) -> bytes:
    data = await request.body()
    if not data:
        raise HTTPException(400, "nothing was sent; send the bytes of an image file")
    return data
