"""Whatever is in a file or a request, the answer is a result or a sentence: no traceback, no hang, bounded memory.

Every mutation comes from a seed and a number, which a failure names. docs/reliability.md has the counts of a full run.
"""

import io
import json
import lzma
import os
import random
import struct
import sys
import tarfile
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from mixlab.analysis.claims import CLAIMS, Evidence, draw_up
from mixlab.app.laboratory import run_facts
from mixlab.app.pictures import Picture, decode_mask
from mixlab.backbones.weights import model_from_file, save_weights
from mixlab.backbones.weights.reading import read_weights
from mixlab.backbones.zoo import create_model
from mixlab.data import UnreadableImage, decode
from mixlab.data.coco import encode_mask
from mixlab.data.decode import FORMATS, MAX_PIXELS, decode_fitted
from mixlab.data.objects import CocoObjects, instances_file
from mixlab.data.shards import TarShards
from mixlab.errors import InputError
from mixlab.evaluation.target import load_target
from mixlab.report import write_report
from mixlab.run import Measurement, RunDirectory, Subject, find_runs, unpacked, write_archive
from mixlab.run.protocols import KnnProtocol
from tests.faults.fuzzing import fuzz, json_text, mutated, mutated_json
from tests.unit.app.live_page import request, serve, tiny_laboratory

sys.path.append(str(Path(__file__).parents[1] / "unit" / "report"))
from example_run import make_example

pytestmark = [pytest.mark.timeout(3600), pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("one_thread")]
NOISE = np.random.default_rng(0).integers(0, 256, (40, 56, 3), dtype=np.uint8)


@cache
def image_files() -> list[tuple[str, bytes]]:
    """Every format, in the modes that it has."""
    smooth = Image.fromarray(NOISE).resize((14, 10)).resize((56, 40))
    modes = {mode: smooth.convert(mode) for mode in ("RGB", "L", "RGBA", "P", "1", "LA", "CMYK", "I;16", "F")}
    found = []
    for kind in sorted(FORMATS):
        for mode, image in modes.items():
            for options in ({}, {"progressive": True}) if kind == "JPEG" else ({},):
                buffer = io.BytesIO()
                try:
                    image.save(buffer, kind, **options)
                except (OSError, KeyError, ValueError):
                    continue  # a mode that this format does not have
                found.append((f"{kind} {mode}", buffer.getvalue()))
    exif = Image.Exif()
    exif[0x0112] = 6
    for kind in ("JPEG", "PNG", "WEBP", "TIFF"):
        buffer = io.BytesIO()
        smooth.save(buffer, kind, exif=exif)
        found.append((f"{kind} turned", buffer.getvalue()))
    return found


def test_decoders_give_an_image_or_a_reason() -> None:
    files = image_files()
    assert {name.split()[0] for name, _ in files} >= set(FORMATS) - {"MPO"}
    picture = Picture("", "", NOISE)

    def attempt(chance: random.Random) -> str:
        data = mutated(chance.choice(files)[1], chance)
        try:
            if chance.random() < 0.3:
                decode_mask(data, picture, max_pixels=MAX_PIXELS)
                return "mask"
            draft = chance.choice((None, 8, 64))
            image = decode(data, draft=draft) if chance.random() < 0.5 else decode_fitted(data, 8, "crop")[0]
        except InputError:
            return "refused"
        assert image.mode == "RGB" and image.width * image.height > 0
        return "image"

    fuzz("decoders", attempt, few=400, many=60_000, memory_mb=2000)


def tar_bytes() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for number in range(4):
            picture = io.BytesIO()
            Image.fromarray(NOISE[:8, :8]).save(picture, ("PNG", "JPEG")[number % 2])
            label = (b"1", b'{"label": 2}')[number % 2]
            long = "long/" * 30 if number == 3 else ""  # a name that takes a header of its own
            names = (f"{long}{number}.{('png', 'jpg')[number % 2]}", f"{long}{number}.{('cls', 'json')[number % 2]}")
            for name, data in zip(names, (picture.getvalue(), label), strict=True):
                about = tarfile.TarInfo(name)
                about.size = len(data)
                tar.addfile(about, io.BytesIO(data))
    return buffer.getvalue()


def with_good_checksum(content: bytes, chance: random.Random) -> bytes:
    """A changed header whose checksum is right again, so that the change is believed."""
    block = chance.choice([place for place in range(0, len(content) - 512, 512) if content[place : place + 1] > b" "])
    header = bytearray(mutated(content[block : block + 512], chance)[:512].ljust(512, b"\0"))
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % (sum(header) & 0o777777)
    return content[:block] + bytes(header) + content[block + 512 :]


def test_shards_give_all_their_images_or_a_reason(tmp_path: Path) -> None:
    whole, file = tar_bytes(), tmp_path / "set.tar"

    def attempt(chance: random.Random) -> str:
        change = with_good_checksum if chance.random() < 0.5 else mutated
        file.write_bytes(change(whole, chance))
        try:
            source = TarShards(str(file), cache=tmp_path / f"cache{os.getpid()}")
        except (InputError, FileNotFoundError) as error:
            assert str(file) in str(error) or f"wds:{file}" in str(error)
            return "refused"
        outcome = "whole"
        for index in range(len(source)):
            try:
                source.load(index)
                source.label(index)
            except UnreadableImage:
                outcome = "unreadable images"
        return outcome

    fuzz("shards", attempt, few=300, many=20_000, memory_mb=500)


def coco_content() -> dict[str, Any]:
    square = [[5, 5, 30, 5, 30, 30, 5, 30]]
    runs = {"size": [40, 56], "counts": [100, 200, 40 * 56 - 300]}
    packed = encode_mask(torch.from_numpy(NOISE[..., 0] > 200))
    entries = [
        {"id": n, "image_id": n % 3 + 1, "category_id": 1 + n % 2, "bbox": [5, 5, 25, 25.0], "segmentation": part}
        for n, part in enumerate((square, runs, packed, square, None, []), start=1)
    ]
    entries[0] |= {"area": 625.0, "iscrowd": 0}
    entries[1] |= {"area": 200, "iscrowd": 1}
    images = [{"id": n, "file_name": "a.png", "height": 40, "width": 56} for n in (1, 2, 3)]
    return {
        "images": images,
        "annotations": entries,
        "categories": [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}],
    }


def test_coco_files_give_objects_or_a_reason_with_the_file(tmp_path: Path) -> None:
    Image.fromarray(NOISE).save(tmp_path / "a.png")
    file, whole = tmp_path / "instances.json", coco_content()
    file.write_text(json.dumps(whole))
    assert len(instances_file(CocoObjects(file))["annotations"]) == 6

    def attempt(chance: random.Random) -> str:
        file.write_bytes(json_text(mutated_json(whole, chance), chance))
        try:
            source = CocoObjects(file)
            instances_file(source)
        except (InputError, FileNotFoundError) as error:
            assert str(file) in str(error)
            return "refused"
        outcome = "whole"
        for index in range(len(source)):
            sample = source.load(index)
            sample.name.encode()
            try:
                assert len(sample.objects().boxes) <= 6 and sample.image.shape[0] == 3
            except UnreadableImage:
                outcome = "unreadable images"
        return outcome

    fuzz("COCO files", attempt, few=400, many=20_000, memory_mb=500)


def weight_files() -> dict[str, bytes]:
    torch.manual_seed(0)
    model = create_model("vit_tiny", dim=32, depth=1, head_dim=16, patch=8, image=16)
    state, found = model.state_dict(), {}
    for name, content, options in (
        ("state", state, {}),
        ("legacy", state, {"_use_new_zipfile_serialization": False}),
        ("checkpoint", {"teacher": {f"backbone.{key}": value for key, value in state.items()}, "epoch": 3}, {}),
    ):
        buffer = io.BytesIO()
        torch.save(content, buffer, **options)
        found[name] = buffer.getvalue()
    return found


def safetensors_mutated(content: bytes, chance: random.Random) -> bytes:
    """Another header over the same tensors: as JSON that is almost right, and with the length that fits it."""
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    if chance.random() < 0.5 and "mixlab" in header.get("__metadata__", {}):
        about = json.loads(header["__metadata__"]["mixlab"])
        header["__metadata__"]["mixlab"] = json.dumps(mutated_json(about, chance))
    else:
        header = mutated_json(header, chance)
    encoded = json.dumps(header).encode()
    return struct.pack("<Q", len(encoded)) + encoded + content[8 + length :]


def test_weight_files_give_a_model_or_a_reason_with_the_file(tmp_path: Path) -> None:
    model = create_model("vit_tiny", dim=32, depth=1, head_dim=16, patch=8, image=16)
    save_weights(model, tmp_path / "ours.safetensors")
    ours, others = (tmp_path / "ours.safetensors").read_bytes(), list(weight_files().values())
    file = tmp_path / "weights"

    def attempt(chance: random.Random) -> str:
        which = chance.random()
        change = safetensors_mutated if which < 0.4 else mutated
        file.write_bytes(change(ours if which < 0.6 else chance.choice(others), chance))
        try:
            if which < 0.6:
                model_from_file(file)
            else:
                read_weights(file)
        except InputError as error:
            assert str(file) in str(error)
            return "refused"
        return "model"

    fuzz("weight files", attempt, few=150, many=10_000, memory_mb=500)


def more_results(run: RunDirectory) -> None:
    """The kinds of results that a study has besides."""
    rows = [
        {"label": label, "tokens": tokens, "pass": kind, "batch": 4, "peak_gib": 0.5, "images_per_s": {"value": 9.5}}
        for label in ("vit", "vim")
        for tokens in (64, 256)
        for kind in ("forward", "training")
    ]
    run.write_result("scaling", {"kind": "scaling", "precision": "bf16", "rows": rows})
    data = {"name": "photos", "num_images": 100, "num_masks": 10, "num_classes": 3}
    about = {"data": data, "masks": "masks", "seeds": [0, 1], "steps": {"dino": [{"name": "a"}]}}
    about |= {"minutes": {"dino": 1.5}, "total_minutes": 1.5, "provenance": {"command": "mixlab study"}}
    run.write_result("study", {"kind": "study", **about})
    trial = {"lr": 1e-3, "training": "dino", "family": "attention", "steps": 10, "n": 50, "metric": "knn_top1", "k": 20}
    trial |= {"value": 0.5, "low": 0.4, "high": 0.6}
    subject = Subject(label="vit-s0", model="vit_tiny", family="attention", training="dino", num_parameters=1000)
    scores = np.array([0.0, 1.0, 1.0, 1.0])
    one = Measurement(
        metric="knn_top1", value=0.75, low=0.3, high=0.95, n=4, subject=subject, protocol=KnnProtocol(data="x", k=20),
        seed=0, by_image=scores,
    )  # fmt: skip
    run.write_result("knn_vit-s0", {"kind": "knn", "measurements": [one.to_json()]})
    row = {"row": "ViT", "column": "top-1", "ours": 70.0, "low": 69.0, "high": 71.0, "paper": 72.0, "said": None}
    row |= {"difference": -2.0, "difference_low": -3.0, "difference_high": -1.0, "digits": 1, "n": 100}
    item = {"item": "table-1", "title": "a table", "paper": "a paper", "place": "Table 1", "note": "", "scale": "full"}
    run.write_result("table_1", {"kind": "reproduce", **item, "rows": [row, {**row, "paper": None, "said": "more"}]})
    run.write_result("tuning", {"kind": "tuning", "chosen": {"dino": {"attention": 1e-3}}, "trials": [trial]})


def runs_to_damage(folder: Path) -> dict[Path, bytes]:
    more_results(make_example(folder))
    small = create_model("vit_tiny", dim=32, depth=1, head_dim=16, patch=8, image=16)
    save_weights(small, folder / "vit" / "weights.safetensors")
    names = ("*.json", "metrics.jsonl", "*.npz")
    return {file: file.read_bytes() for name in names for file in sorted(folder.rglob(name))}


def test_run_directories_give_a_page_a_ledger_and_facts_or_a_reason_with_the_file(tmp_path: Path) -> None:
    folder = tmp_path / "lab"
    whole = runs_to_damage(folder)
    measured = [claim for claim in CLAIMS if claim.kind == "measured"]

    def page(chance: random.Random) -> None:
        write_report([folder], tmp_path / ("page.html" if chance.random() < 0.1 else "page.md"))

    def ledger(_: random.Random) -> None:
        list(draw_up(Evidence.from_runs([run.path for run in find_runs([folder])]), measured))

    def facts(_: random.Random) -> None:
        [run_facts(run) for run in find_runs([folder])]
        load_target(str(folder / "vit"), device="cpu")

    def attempt(chance: random.Random) -> str:
        file, read = chance.choice(list(whole)), chance.choice((page, page, ledger, facts))
        if file.suffix == ".json":
            file.write_bytes(json_text(mutated_json(json.loads(whole[file]), chance), chance))
        else:
            file.write_bytes(mutated(whole[file], chance))
        try:
            read(chance)
            outcome = "read"
        except (InputError, OSError) as error:
            assert file.name in str(error), f"{read.__name__}: {error} does not name {file.name}"
            outcome = "refused"
        file.write_bytes(whole[file])
        return f"{read.__name__} {outcome}"

    fuzz("run directories", attempt, few=12, many=1500, memory_mb=500)


def test_archives_of_runs_are_unpacked_or_refused_with_the_file(tmp_path: Path) -> None:
    RunDirectory.create(tmp_path / "lab").write_result("note", {"kind": "note", "text": "x" * 500})
    whole = write_archive(tmp_path / "lab", tmp_path / "whole.tar.xz").read_bytes()
    file = tmp_path / "runs.tar.xz"

    def attempt(chance: random.Random) -> str:
        if chance.random() < 0.5:
            file.write_bytes(mutated(whole, chance))
        else:
            file.write_bytes(lzma.compress(with_good_checksum(lzma.decompress(whole), chance)))
        try:
            with unpacked(file) as folder:
                [run.results() for run in find_runs([folder])]
        except (InputError, OSError):
            return "refused"
        return "unpacked"

    fuzz("archives", attempt, few=150, many=5000, memory_mb=500)


QUESTIONS: tuple[dict[str, Any], ...] = tuple(
    {"picture": "sample-1", "fit": "crop", "model": "vit_tiny", "layer": 1, **kind}
    for kind in (
        {"kind": "map", "map": "cosine"},
        {"kind": "pca"},
        {"kind": "matrix", "head": 1},
        {"kind": "row", "head": None, "x": 0.5, "y": 0.25, "sense": "row"},
        {"kind": "score", "map": "default", "part": None, "mask": [[0, 40000], [1, 20000], [255, 5536]]},
        {"kind": "sweep", "mask": [[0, 40000], [1, 25536]]},
    )
)
PATHS = (
    "/", "/static/main.js", "/api/about", "/api/questions/abc", "/api/pictures/sample-1?size=64&fit=crop",
    "/api/pictures/sample-1/mask?fit=squash", "/api/pictures/upload-0", "/api/health",
)  # fmt: skip
REFUSALS = {400, 403, 404, 405, 408, 409, 413, 414, 421, 422, 431}


def test_the_page_answers_or_refuses_whatever_it_is_asked() -> None:
    warnings.simplefilter("ignore")
    laboratory, files = tiny_laboratory(), image_files()
    server, running = serve(laboratory), list[str]()

    def start() -> str:
        if not running:  # in the child: threads do not survive a fork
            running.append(server.__enter__())
        return running[0]

    def attempt(chance: random.Random) -> str:
        address, headers = start(), {"content-type": "application/json"}
        which = chance.random()
        if which < 0.6:
            body = json_text(mutated_json(chance.choice(QUESTIONS), chance), chance)
            wait = chance.choice((0, 400, -1, "x", 2000))
            reply = request(address, "POST", f"/api/questions?wait_ms={wait}", body, headers)
        elif which < 0.8:
            place = chance.choice(("/api/pictures", "/api/pictures/sample-1/mask"))
            reply = request(address, "POST", place, mutated(chance.choice(files)[1], chance))
        else:
            path = mutated(chance.choice(PATHS).encode(), chance).decode("latin-1")
            path = "/" + "".join(sign for sign in path if "!" <= sign <= "~")
            origin = mutated(b"http://localhost:8765", chance)
            origin = "".join(sign for sign in origin.decode("latin-1") if " " <= sign <= "~").strip()
            reply = request(address, "GET", path, headers={"origin": origin} if chance.random() < 0.5 else None)
        assert reply.status in REFUSALS | {200, 201, 202, 204, 307}, f"{reply.status}: {reply.body}"
        if reply.status in REFUSALS and isinstance(reply.body, dict):
            assert reply.body["error"]["message"]
        return str(reply.status)

    fuzz("the page", attempt, few=150, many=15_000, memory_mb=1500)
