"""The table of speed in README.md, from the tables of the benchmarks: `mixlab bench all`."""

from pathlib import Path

from mixlab.bench.dino import PUBLISHED
from mixlab.bench.timing import Row
from mixlab.errors import InputError

PARTS = ("ssd", "backbone", "dino", "dense", "probe", "knn", "auc")  # the benchmarks that it needs
BEGIN, END = "<!-- `mixlab bench all` writes this table -->", "<!-- end of the table -->"
Tables = dict[str, list[Row]]  # title: rows


def speed_table(results: dict[str, Tables]) -> str:
    """In Markdown; what was not measured is left out."""
    rows = [row for tables in results.values() for table in tables.values() for row in table]
    lines = (*_dino(rows), _scan(rows), _pass(rows), _long(rows), _probes(rows), _neighbours(rows), _auc(rows))
    return "\n".join(["| | mixlab | peer |", "|---|---|---|", *filter(None, lines)])


def check_place(path: Path) -> str:
    """The text of a file that has a place for the table."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not a file; give one with the lines {BEGIN} and {END}")
    text = path.read_text(encoding="utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise InputError(f"{path} has no place for the table; add the lines {BEGIN} and {END}")
    return text


def write_speed_table(table: str, path: Path) -> None:
    """Put it between its two marks in a file."""
    text = check_place(path)
    before, _, rest = text.partition(BEGIN)
    path.write_text(f"{before}{BEGIN}\n{table}\n{END}{rest.partition(END)[2]}", encoding="utf-8")


def _where(rows: list[Row], **wanted: object) -> list[Row]:
    return [row for row in rows if all(row.get(key) == value for key, value in wanted.items())]


def _first(rows: list[Row], **wanted: object) -> Row | None:
    return next(iter(_where(rows, **wanted)), None)


def _speed(row: Row, key: str = "images_per_s") -> str:
    memory = f", {row['peak_GiB']:.1f} GiB" if row.get("peak_GiB") else ""
    return f"{row[key]:,.3g} images/s{memory}" if row[key] < 1000 else f"{row[key]:,.0f} images/s{memory}"


def _dino(rows: list[Row]) -> list[str | None]:
    """Crops made in the step, in the fastest way; the peer has its views ready."""
    lines: list[str | None] = []
    theirs = {"dinovim_base": "Dino-Mamba, released", "vit_base": "facebookresearch/dino"}
    for model, label in (("dinovim_base", "DinoVim-B"), ("vit_base", "ViT-B")):
        ours = [r for r in _where(rows, model=model, views="made in step") if r["images_per_s"]]
        here = [r for r in _where(rows, system=theirs[model], views="ready") if r["images_per_s"]]
        peer = (here or _where(PUBLISHED, system=theirs[model]))[0]
        note = "" if here else ", another run"
        if ours:
            best = max(ours, key=lambda r: r["images_per_s"])
            lines.append(
                f"| DINO step, {label}, batch 64 | {_speed(best)} | {_speed(peer)}: {theirs[model]}{note} |"
            )  # fmt: skip
    return lines


def _scan(rows: list[Row]) -> str | None:
    ours = _first(rows, batch=64, tokens=198, system="mixlab")
    if ours is None:
        return None
    peers = [r for r in _where(rows, batch=64, tokens=198) if str(r.get("system")).startswith("mamba_ssm")]
    peer = f"{peers[0]['fwd_bwd_ms']:.3f} ms: mamba_ssm, once per direction" if peers else ""
    return f"| two-way scan, 64 x 198 tokens, forward + backward | {ours['fwd_bwd_ms']:.3f} ms | {peer} |"


def _pass(rows: list[Row]) -> str | None:
    ours, vit = (_first(rows, model=name, px=224, batch=128) for name in ("dinovim_base", "vit_base"))
    if ours is None or vit is None:
        return None
    speeds = [_speed(row, "images_per_s_graph") for row in (ours, vit)]
    return f"| DinoVim-B at 224 px, forward + backward, as a graph | {speeds[0]} | {speeds[1]}: our ViT-B |"


def _long(rows: list[Row]) -> str | None:
    ours, vit = (_first(rows, model=name, px=2048) for name in ("dinovim_base", "vit_base"))
    if ours is None or vit is None:
        return None
    return f"| DinoVim-B at 2,048 px, forward + backward | {_speed(ours)} | {_speed(vit)}: our ViT-B |"


def _probes(rows: list[Row]) -> str | None:
    grid, one = _first(rows, what="grid"), _first(rows, what="one head")
    if grid is None or one is None:
        return None
    times = f"{grid['ms_per_step']:.1f} ms a step | {one['ms_per_step']:.1f} ms: one probe"
    return f"| {grid['heads']} linear probes at once, from images | {times} |"


def _neighbours(rows: list[Row]) -> str | None:
    found = next((row for row in rows if "queries_per_s" in row), None)
    if found is None:
        return None
    return f"| kNN, 50,000 against 1.28 million features | {found['seconds']:.1f} s | |"


def _auc(rows: list[Row]) -> str | None:
    ours = _first(rows, system="mixlab", input="cells, resizing excluded")
    loop = _first(rows, system="scikit-learn, loop", input="cells, resizing excluded")
    if ours is None:
        return None
    peer = f"{loop['times_ours']:.0f} x: scikit-learn in a loop" if loop else ""
    return f"| Binary-AUC of {ours['num_images']:,} maps | {ours['seconds']:.2f} s | {peer} |"
