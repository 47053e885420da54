"""Figures that pages quote are those of the records they come from: published studies, cards, and JSON beside them.

`docs/studies/*/README.md` and the tables of `docs/speedrun.md` are made from records, as their own tests see.
"""

import json
import re
import tarfile
from collections import Counter
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from mixlab.backbones.zoo import SHIPPED
from mixlab.run.files import read_json
from mixlab.statistics import difference, with_interval
from mixlab.studies.miniature.parts import PARTS
from mixlab.studies.speedrun.record import score_of

ROOT = Path(__file__).parents[1]
STUDY = ROOT / "docs" / "studies" / "miniature" / "README.md"
SMALL = ROOT / "docs" / "studies" / "small" / "README.md"
SHIPPED_FOLDER = ROOT / "mixlab" / "shipped"
COLUMNS = {"kNN-20, DINO, %": "kNN", "linear probe, DINO, the best of its grid, %": "linear probe"}
FAMILIES = ("vit", "linearvit", "dinovim", "mambareg", "gatedconv")


def text_of(path: str | Path) -> str:
    """In one line: sentences are wrapped anywhere."""
    return " ".join((ROOT / path).read_text(encoding="utf-8").split())


def tables(path: str | Path, first: str) -> list[dict[str, dict[str, str]]]:
    """The tables whose first column is called so: rows by their first cell, cells by column."""
    lines = (ROOT / path).read_text(encoding="utf-8").splitlines()
    found = []
    for start in (number for number, line in enumerate(lines) if line.startswith(f"| {first} |")):
        cells = []
        for line in lines[start:]:
            if not line.startswith("|"):
                break
            cells.append([cell.strip().strip("`") for cell in line.strip("|").split("|")])
        header, _, *rows = cells
        found.append({row[0]: dict(zip(header, row, strict=True)) for row in rows})
    return found


def archived(name: str) -> dict[str, Any]:
    """A result of the study at 160 px itself, from its archive."""
    with tarfile.open(SMALL.parent / "runs.tar.xz") as archive:
        file = archive.extractfile(f"small/results/{name}.json")
        assert file
        found: dict[str, Any] = json.load(file)
        return found


def table(path: str | Path, first: str) -> dict[str, dict[str, str]]:
    return tables(path, first)[0]


def small_study(size: str, column: str, place: int = 0, suffix: str = "") -> list[str]:
    """What the tables of the study at 160 px give each family in the first column of that name, or a later one."""
    parts = tables(SMALL, "model | seeds")
    rows = [[part[f"{name}-{size}{suffix}"] for part in parts if f"{name}-{size}{suffix}" in part] for name in FAMILIES]
    found = [[cell for row in own for title, cell in row.items() if title.startswith(column)] for own in rows]
    return [cells[place].split()[0] if cells else "–" for cells in found]


def study_table() -> dict[str, dict[str, str]]:
    """Models of the miniature: scores and ranks, by the titles of columns without their protocols."""
    found: dict[str, dict[str, str]] = {}
    for part in tables(STUDY, "model | seeds"):
        for name, row in part.items():
            own = found.setdefault(name, {})
            own |= {
                title.partition(" (")[0]: cell for title, cell in row.items() if title.partition(" (")[0] not in own
            }
    return found


def test_the_minutes_of_the_miniature_are_those_of_its_record() -> None:
    said = re.search(r"minutes: ((?:\w+ [\d.]+(?:, )?)+)\.", STUDY.read_text(encoding="utf-8"))
    assert said
    measured = {part: float(minutes) for part, minutes in (pair.split() for pair in said[1].split(", "))}
    written = table("docs/miniature.md", "part")
    assert set(measured) == set(PARTS) == set(written)
    for name, part in PARTS.items():
        assert float(written[name]["minutes"]) == part.minutes
        if name != "ranks":  # which ran on a CPU, and is estimated for a GPU
            assert part.minutes == pytest.approx(measured[name], abs=0.051), name
    assert f"took {measured['ranks']} minutes on two shared CPU cores" in text_of("docs/miniature.md")
    assert sum(part.minutes for part in PARTS.values()) == pytest.approx(30, abs=5)  # "half an hour"


def test_the_miniatures_scores_in_experiments_and_readme_are_those_of_its_tables() -> None:
    study = study_table()
    experiments = (ROOT / "EXPERIMENTS.md").read_text(encoding="utf-8")
    for line, column in COLUMNS.items():
        row = next(row for row in experiments.splitlines() if row.startswith(f"| {line} |"))
        quoted = [cell.split()[0] for cell in row.strip("| ").split("|")[1:]]
        assert quoted == [study[family][column].split()[0] for family in FAMILIES], line
    row = next(row for row in experiments.splitlines() if row.startswith("| classifier, with labels, % |"))
    own = [study[f"{family}-supervised"]["own classifier"].split()[0] for family in FAMILIES]
    assert [cell.strip() for cell in row.strip("| ").split("|")[1:]] == own
    readme = text_of("README.md")
    assert f"({own[4]} % against {own[2]} and {own[3]} %)" in readme
    softmax, linear, *mamba = (float(study[name]["numerical rank"].split()[0]) for name in FAMILIES[:4])
    assert {round(rank) for rank in mamba} == {31}
    assert f"rank {softmax:.0f} of 256 with softmax, 31 with Mamba and {linear:.0f} with linear attention" in readme


def test_experiments_and_readme_quote_the_tables_of_the_study_at_160_px() -> None:
    columns = {
        "kNN-20, %": ("kNN",),
        "the paper's probe, %": ("linear probe",),
        "Binary-AUC of `isolation`, masks": ("Binary-AUC (isolation)",),
        "above the blob, masks": ("minus centre (isolation)",),
        "above the twin, masks": ("minus untrained (isolation)",),
        "Binary-AUC of `isolation`, VOC": ("Binary-AUC (isolation)", 1),
        "the paper's map above the twin, masks": ("minus untrained (the paper",),
        "mean over changed images, %": ("mean (",),
        "numerical rank of blocks": ("numerical rank",),
        "effective rank of blocks": ("effective rank",),
        "classifier trained with labels, %": ("own classifier", 0, "-supervised"),
        "mIoU on VOC, %": ("mIoU", 0, "-segment"),
    }
    written = table("EXPERIMENTS.md", "measured | ViT")
    assert len(written) == 2 * len(columns) - 1  # with labels there are tiny networks alone
    for line, cells in written.items():
        size, _, what = line.partition(": ")
        assert list(cells.values())[1:] == small_study(size, *columns[what]), line
    sizes = ("tiny", "small")
    auc, above = (
        [float(cell) for size in sizes for cell in small_study(size, f"{name} (isolation)")]
        for name in ("Binary-AUC", "minus untrained")
    )
    twins = [score - gap for score, gap in zip(auc, above, strict=True)]
    said = f"{min(auc):.3f} to {max(auc):.3f}, that of a blob in the centre 0.864, that of untrained networks "
    assert said + f"{min(twins):.3f} to {max(twins):.3f}." in text_of("README.md")


def test_experiments_and_speedrun_quote_the_ablations() -> None:
    """Differences from the recipe, image by image."""
    changes = {
        "half-length": "half the steps", "no-local": "no local views", "temperature-0.06": "teacher temperature 0.06",
        "batch-half": "half the batch and rate with as many images", "momentum-0.98": "momentum 0.98",
        "momentum-0.996": "and 0.996", "koleo-none": "no KoLeo", "registers-4": "four registers",
        "rate-1e-3": "learning rate 1e-3", "rate-4e-3": "and 4e-3",
    }  # fmt: skip
    place = ROOT / "docs" / "studies" / "speedrun" / "results"
    knn = {name: score_of(read_json(place / f"dino_vit_tiny160-{name}-s0.json"), "knn_top1") for name in changes}
    base = score_of(read_json(place / "dino_vit_tiny160-as-it-is-s0.json"), "knn_top1")
    gaps = {name: difference([knn[name]], [base]) for name in changes}
    experiments = text_of("EXPERIMENTS.md")
    speedrun = text_of("docs/speedrun.md").partition("**At full length** (")[2].replace(" points [", " [")
    assert f"The recipe has {100 * base.value:.1f} %; differences are in points" in experiments
    for name, said in changes.items():
        gap = with_interval(gaps[name].value, gaps[name].low, gaps[name].high, form="+.1f", unit=100)
        assert f"{said} {gap}" in experiments
        short = gap if abs(gaps[name].value) > 0.01 else gap.partition(" ")[0]
        assert short in speedrun, name
    assert max(changes, key=lambda name: gaps[name].value) == "temperature-0.06"  # "the best of all changes"


def tried_rates(training: str) -> dict[str, list[float]]:
    """kNN-20 in % of half, once and twice the recipe's rate, by family."""
    tried: dict[str, list[float]] = {}
    for trial in sorted(archived("tuning")["trials"], key=lambda trial: trial["lr"]):
        assert trial["k"] == 20
        if trial["training"] == training:
            tried.setdefault(trial["family"], []).append(100 * trial["value"])
    return tried


def test_experiments_and_speedrun_quote_the_learning_rates_that_were_tried() -> None:
    tried = tried_rates("dino-tiny")
    gains = {name: twice - once for name, (_, once, twice) in tried.items()}
    worse, half = gains.pop("linearvit"), [once - half for half, once, _ in tried.values()]
    low, high = (f"{min(gaps):.1f} to {max(gaps):.1f}" for gaps in (half, gains.values()))
    experiments, speedrun = text_of("EXPERIMENTS.md"), text_of("docs/speedrun.md")
    assert f"Half the rate costs every family {low} points." in experiments
    assert f"LinearViT is best at the recipe's rate, the others at twice it, by {high} points" in experiments
    assert f"half the rate cost the tiny families {low} points" in speedrun
    assert f"twice the rate gave LinearViT {-worse:.1f} less and the others {high} more" in speedrun


def test_experiments_and_speedrun_quote_the_rates_of_the_small_size() -> None:
    tried = tried_rates("dino-small")
    experiments, speedrun = text_of("EXPERIMENTS.md"), text_of("docs/speedrun.md")
    names = ("ViT-S", "LinearViT-S", "DinoVim-S", "Mamba-Reg-S", "the gated CNN-S")
    for name, said in zip(names, (tried[family] for family in FAMILIES), strict=True):
        one, two, three = (f"{value:.1f}" for value in said)
        assert re.search(rf"{name} {one},? (?:%, )?{two},? and {three}", experiments), name
    cost, gain = ({name: values[1] - values[at] for name, values in tried.items()} for at in (0, 2))
    assert (
        f"half the rate cost the gated CNN {cost['gatedconv']:.1f} points, DinoVim {cost['dinovim']:.1f}, "
        f"Mamba-Reg {cost['mambareg']:.1f}, ViT {cost['vit']:.1f} and LinearViT {cost['linearvit']:.1f}; "
        f"twice the rate gave DinoVim {-gain['dinovim']:.1f} more, the gated CNN {-gain['gatedconv']:.1f} and "
        f"Mamba-Reg {-gain['mambareg']:.1f}, LinearViT {gain['linearvit']:.1f} and ViT {gain['vit']:.1f} less"
    ) in speedrun


def test_experiments_quotes_the_cost_of_the_study_at_160_px() -> None:
    rows = [row for row in archived("scaling")["rows"] if row["pass"] == "training"]
    speed = {(row["label"], row["tokens"]): row["images_per_s"]["value"] for row in rows}
    vit, linear, vim, registers, cnn = (speed[f"{name}-tiny", 6400] for name in FAMILIES)
    said = (
        f"LinearViT-T makes {linear / vit:.2f} times the images per second of ViT-T, the gated CNN-T {cnn / vit:.2f},"
    )
    said += f" DinoVim-T {vim / vit:.2f} and Mamba-Reg-T {registers / vit:.2f}."
    assert said in text_of("EXPERIMENTS.md")
    ms = {(row["label"], row["tokens"]): f"{1000 * row['batch'] / row['images_per_s']['value']:.0f}" for row in rows}
    pairs = [f"{ms[f'{n}-tiny', 6400]} and {ms[f'{n}-small', 1600]}" for n in ("linearvit", "dinovim", "gatedconv")]
    assert "LinearViT {} ms, DinoVim {}, the gated CNN {}.".format(*pairs) in text_of("EXPERIMENTS.md")


def test_experiments_counts_the_verdicts_of_the_ledger_over_both_studies() -> None:
    claims = read_json(ROOT / "docs" / "studies" / "ledger" / "results" / "claims.json")["claims"]
    num = Counter(claim["status"] for claim in claims)
    said = f"{num['supported']} are supported, {num['supported in part']} in part, {num['contradicted']} contradicted, "
    said += f"{num['not resolved at this scale']} not resolved and {num['not measured']} not measured ([one ledger"
    assert said in text_of("EXPERIMENTS.md")


def test_the_table_of_shipped_networks_is_that_of_their_cards() -> None:
    written = table(SHIPPED_FOLDER / "README.md", "network")
    isolation = []
    for name in SHIPPED:
        card = (ROOT / "mixlab" / f"{name}.md").read_text(encoding="utf-8")
        few, own = re.findall(r"\| kNN in these bits \| ([\d.]+) %, of the run's own ([\d.]+) %", card)[0]
        assert (written[name]["kNN-20 in 6 bits"], written[name]["in 16 bits"]) == (few, own), name
        isolation += re.findall(r"\| isolation, .*?masks, [^|]+ \| ([\d.]+) \[.*?\] \| ([\d.]+) \| ([\d.]+) \|", card)
    found, centre, untrained = (list(map(float, column)) for column in zip(*isolation, strict=True))
    assert f"a Binary-AUC of {min(found)} to {max(found)} against masks" in text_of("README.md")
    said = f"A blob in the centre has {mean(centre):.3f}, the same networks before training have {mean(untrained):.3f}."
    assert said in text_of("README.md")


def test_the_readmes_speedruns_are_rows_of_their_page() -> None:
    rows = table("docs/speedrun.md", "recipe")
    knn = {recipe: row["kNN-20, % over seeds"].split()[0] for recipe, row in rows.items()}
    small = {
        name: knn[f"dino_{name}_small160"] for name in ("vit", "linearvit", "gatedconv", "dinovim", "dinomambareg")
    }
    readme = text_of("README.md")
    assert f"is {small['vit']} % for ViT-S (three seeds" in readme
    assert f"LinearViT has {small['linearvit']} %, and after half as many steps" in readme
    said = (
        f"a gated CNN has {small['gatedconv']} %, DinoVim {small['dinovim']} % and Mamba-Reg {small['dinomambareg']} %."
    )
    assert said in readme
    seconds = [float(rows[f"dino_{name}_small160"]["training, s"]) for name in small]
    assert (round(min(seconds) / 60), round(max(seconds) / 60)) == (4, 8)  # "four to eight minutes"


def test_long_sequences_quotes_its_json() -> None:
    record = read_json(ROOT / "docs" / "studies" / "long_sequences.json")
    written = table("docs/long_sequences.md", "px (tokens), batch")
    columns = {"linearvit_base": "LinearViT-B", "dinovim_base": "DinoVim-B", "mambaout_base": "MambaOut-B"}
    for row in record["backbones"]:
        place = written[f"{row['px']:,} ({row['tokens']:,}), {row['batch']}"]
        if row["model"] == "vit_base":
            assert place["ViT-B"] == f"{row['images_per_s']:.3g} img/s"
        else:
            assert place[columns[row["model"]]] == f"{row['speed_over_vit']:.2f} x"
    text = text_of("docs/long_sequences.md")
    memory = {name: [row["memory_over_vit"] for row in record["backbones"] if row["model"] == name] for name in columns}
    assert f"DinoVim-B needs {max(memory['dinovim_base']):.2f} of ViT-B's, LinearViT-B 1.00 (" in text
    assert f"{max(memory['linearvit_base']):.2f} at 2,048 px), MambaOut-B {max(memory['mambaout_base']):.2f}" in text
    for crossing in record["crossings"]:
        if crossing["faster_from_px"].startswith("about "):
            assert f"{int(crossing['faster_from_px'].removeprefix('about ')):,} px" in text


def test_every_damaged_jpeg_is_counted_once() -> None:
    said = re.search(
        r"Of ([\d,]+) damaged JPEGs .*? both decode ([\d,]+) to the same bits and refuse ([\d,]+); torchvision alone "
        r"refuses ([\d,]+), Pillow alone ([\d,]+),",
        text_of("EXPERIMENTS.md"),
    )
    assert said
    total, *parts = (int(number.replace(",", "")) for number in said.groups())
    assert sum(parts) == total
