"""Long work and lost servers: the page says what happens, and goes on."""

import io
import multiprocessing
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image

from tests.browser.slow_server import serve_slowly, slow_laboratory
from tests.browser.visiting import OpenPage, expect, leave, settle
from tests.ranks import free_port
from tests.unit.app.live_page import request, serve
from tests.waiting import wait_for

VIEW = "#model=vit_tiny&model=dinovim_tiny&mask=sample"


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def started_server(port: int) -> Iterator[multiprocessing.process.BaseProcess]:
    """A process of its own."""
    process = multiprocessing.get_context("forkserver").Process(target=serve_slowly, args=(port,))
    process.start()
    try:
        wait_for(lambda: answers(port), seen=lambda: "The server did not start.")
        yield process
    finally:
        process.kill()
        process.join()


def test_long_work_shows_its_progress_and_can_be_cancelled(open_page: OpenPage) -> None:
    with serve(slow_laboratory()) as address:
        page = open_page(VIEW, at=address)
        page.locator("#sweep").click()
        expect(page.locator("#sweep-progress")).to_be_visible()
        page.wait_for_function("() => document.getElementById('sweep-bar').value > 0")
        matrix = page.locator(".answer figure:nth-child(2) figcaption").first
        page.locator("#head").fill("1")  # the rest of the page stays live meanwhile
        expect(matrix).to_contain_text("head 1 (0 to 1)")
        expect(page.locator("#sweep-progress")).to_be_visible()
        page.locator("#layer").fill("1")
        expect(page.locator(".answer header p").nth(1)).to_contain_text("layer 1 (0 to 4)")
        page.locator("#sweep-cancel").click()
        expect(page.locator("#sweep-progress")).to_be_hidden()
        expect(page.locator("#sweep")).to_be_visible()
        assert page.locator("#layers circle").count() == 0
        settle(page)
        leave(page)


def test_a_picture_that_takes_long_says_so_and_can_be_cancelled_and_asked_for_again(open_page: OpenPage) -> None:
    laboratory = slow_laboratory()
    with serve(laboratory) as address:
        page = open_page("#model=vit_tiny&model=dinovim_tiny&from=0&layer=4", at=address)
        page.locator("#layer").fill("0")
        panel = page.locator(".card").first.locator("figure").nth(1)
        expect(panel.locator(".note")).to_contain_text("thinking")
        panel.get_by_role("button", name="Cancel").click()
        expect(panel.locator(".note")).to_contain_text("Cancelled.")
        laboratory.hurries = True
        panel.get_by_role("button", name="Try again").click()
        expect(panel.locator("figcaption")).to_contain_text("of the variance")
        settle(page)
        expect(panel.locator(".note")).to_be_hidden()
        leave(page)


def test_an_answer_that_the_server_gave_up_on_is_asked_for_again(open_page: OpenPage) -> None:
    laboratory = slow_laboratory()
    with serve(laboratory) as address:
        page = open_page(
            "#model=vit_tiny&model=dinovim_tiny&from=0&layer=4", at=address, refusals=("status of 404", "status of 409")
        )
        asked: list[str] = []
        page.on("request", lambda request: "/api/questions/" in request.url and asked.append(request.url))
        page.locator("#layer").fill("0")
        panel = page.locator(".card").first.locator("figure").nth(1)
        expect(panel.locator(".note")).to_contain_text("thinking")
        laboratory.hurries = True
        for url in set(asked):  # as if nobody had asked for too long
            request(address, "DELETE", url.partition(address)[2])
        expect(panel.locator("figcaption")).to_contain_text("of the variance")
        settle(page)
        expect(page.locator("#banner")).to_be_hidden()
        leave(page)


def test_a_server_killed_in_mid_request_is_announced_and_the_page_recovers(open_page: OpenPage, tmp_path: Path) -> None:
    port = free_port()
    with started_server(port) as first:
        page = open_page(VIEW, at=f"127.0.0.1:{port}", refusals=("net::ERR_", "status of 404"))
        buffer = io.BytesIO()
        Image.linear_gradient("L").convert("RGB").save(buffer, format="PNG")
        file = tmp_path / "gradient.png"
        file.write_bytes(buffer.getvalue())
        page.set_input_files("#file", file)
        expect(page.locator("#status")).to_contain_text("gradient.png")
        settle(page)
        page.get_by_text("Draw", exact=True).click()
        page.locator("#brush").fill("40")
        page.locator("#stage").click()
        page.locator("#sweep").click()
        page.wait_for_function("() => document.getElementById('sweep-bar').value > 0")
        first.kill()
        expect(page.locator("#banner")).to_contain_text("The server does not answer")
        page.locator("#layer").fill("0")
    with started_server(port):
        expect(page.locator("#banner")).to_be_hidden()
        expect(page.locator("#status")).to_have_text("The server is back.")
        expect(page.locator(".answer header p").nth(1)).to_contain_text("layer 0 (0 to 4)")
        page.wait_for_function(
            "() => document.querySelectorAll('#answers figure.empty, #cards figure.empty').length === 0"
        )
        settle(page)
        expect(page.locator("#stage")).to_have_attribute("aria-label", "Image: your image")  # sent again by the page
        expect(page.locator("#score-table tbody tr")).to_have_count(3)  # scored again, the blob in the centre beside
        expect(page.locator("#sweep")).to_be_visible()
        leave(page)
