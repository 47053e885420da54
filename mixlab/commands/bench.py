"""`mixlab bench`: speed, side by side with peers in one run."""

from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from mixlab.commands.answer import Answer
from mixlab.commands.options import Flat
from mixlab.console import console
from mixlab.errors import InputError, WorkError, check_counts
from mixlab.run import provenance

What = Literal[
    "all", "ssd", "selective", "attention", "backbone", "crops", "dino", "feed", "probe", "knn", "dense", "auc", "scale"
]
Tables = dict[str, list[dict[str, Any]]]  # title: rows
MODULES = {"ssd": "operations", "attention": "operations", "crops": "images", "probe": "frozen",
           "knn": "frozen"}  # fmt: skip
NEED_GPU = ("dino", "feed", "probe", "dense")  # unless quick


def bench(
    what: Annotated[What, tyro.conf.Positional, tyro.conf.arg(metavar="WHAT")],
    answer: Flat[Answer] = Answer(),
    *,
    quick: bool = False,
    peer: Path | None = None,
    figure: Path | None = None,
    readme: Path | None = None,
    files: int = 100_000,
    entries: int = 20_000_000,
    shards: int = 200,
    megabytes: int = 1000,
    parameters: int = 100,
    ranks: int = 4,
) -> dict[str, Any]:
    """Measure speed against other implementations; read the ratios. Rows appear as they are measured, tables at the
    end.

    Args:
        what: all (the whole speed table of README.md), ssd (the scan alone), selective (Mamba-1's scan and its models),
            attention (linear and softmax attention alone), backbone (full passes, growth with tokens), crops (DINO's
            ten crops against torchvision), dino (full DINO steps), feed (training from files against the training step
            alone), probe (a grid of linear probes against one), knn (a bank of ImageNet's size), dense (speed and
            memory against input size), auc (Binary-AUC against loops over images), scale (opening data, process memory,
            saving and resuming as data and model grow; against torchvision's ImageFolder and torch.save).
        quick: fewer repeats and smaller sizes.
        peer: for dino, a clone of facebookresearch/dino, measured in the same run.
        readme: for all, write the speed table into this file, between its two markers.
        files: for scale, number of files in the folder to open.
        entries: for scale, entries of a synthetic list of paths; 100 million take 2.3 GB of disk.
        shards: for scale, tar shards of 1,000 samples to index.
        megabytes: for scale, size of the state to save.
        parameters: for scale, parameters of the network to shard, in millions.
        ranks: for scale, processes that share the network.
        figure: for dense, draw speed and memory against input size into this file (.svg or .png).
    """
    import torch

    from mixlab.ops.backend import backend_name

    answer.check()
    for name, given, goes_with in (("peer", peer, "dino"), ("figure", figure, "dense"), ("readme", readme, "all")):
        if given is not None and what not in (goes_with, "all" if name == "peer" else goes_with):
            raise InputError(f"--{name} has no effect on `mixlab bench {what}`; it is for {goes_with}")
    if figure is not None and figure.suffix not in (".svg", ".png"):
        raise InputError(f"--figure {figure} is neither .svg nor .png; end its name in one of them")
    threads = torch.get_num_threads()
    console.print(f"Operations run on {backend_name()}, {threads} thread{'s' * (threads != 1)}.")
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    if what == "all":
        found = _run_all(answer, quick, peer, readme)
        return answer.emit({"benchmark": what, **found, "provenance": provenance(device=device)})
    check_counts(files=files, entries=entries, shards=shards, megabytes=megabytes, parameters=parameters, ranks=ranks)
    sizes = {"num_files": files, "num_entries": entries, "num_shards": shards, "megabytes": megabytes,
             "millions": parameters}  # fmt: skip
    tables = run_benchmark(what, quick=quick, peer=peer, sizes=sizes, ranks=ranks)
    _show(tables, answer)
    if what == "dense" and figure is not None:
        from mixlab.analysis.figures import save_charts
        from mixlab.bench.dense import scaling_charts

        save_charts(scaling_charts(next(iter(tables.values()))), figure)
    return answer.emit({"benchmark": what, "tables": tables, "provenance": provenance(device=device)})


def _show(tables: Tables, answer: Answer) -> None:
    for number, (title, rows) in enumerate(tables.items()):
        if number:
            answer.line("")
        answer.table(title, [column_name(key) for key in rows[0]], [list(row.values()) for row in rows])


def column_name(key: str) -> str:
    units = {"mib": "MiB", "gib": "GiB", "gflops": "GFLOPs"}
    return " ".join(units.get(word, word) for word in key.split("_"))


def _run_all(answer: Answer, quick: bool, peer: Path | None, readme: Path | None) -> dict[str, Any]:
    """Each benchmark in turn; one that fails is left out and named."""
    from mixlab.bench.summary import PARTS, check_place, speed_table, write_speed_table

    if quick and readme is not None:
        raise InputError("--quick measures small sizes, which do not belong in --readme; leave out one of the two")
    if readme is not None:
        check_place(readme)
    results: dict[str, Tables] = {}
    for part in PARTS:
        try:
            results[part] = run_benchmark(part, quick=quick, peer=peer)  # type: ignore[arg-type]
        except (RuntimeError, WorkError, OSError) as error:
            console.print(f"{part} is left out: {error}")
            continue
        _show(results[part], answer)
    if quick:
        return {"tables": results}
    text = speed_table(results)
    if readme is None:
        answer.line(text)
    else:
        write_speed_table(text, readme)
        console.print(f"table of speed written to {readme}")
    return {"tables": results, "markdown": text}


def run_benchmark(
    what: What, *, quick: bool, peer: Path | None = None, sizes: dict[str, int] | None = None, ranks: int = 4
) -> Tables:
    """The tables of one benchmark, by title."""
    import torch

    on_gpu = torch.cuda.is_available()
    if not on_gpu and what in ("attention", "selective"):
        raise WorkError(f"`mixlab bench {what}` needs a GPU: it measures GPU kernels")
    if not on_gpu and what in NEED_GPU and not quick:
        raise WorkError(f"`mixlab bench {what}` needs a GPU; --quick runs a small version on the CPU")
    module: Any = import_module(f"mixlab.bench.{MODULES.get(what, what)}")
    few: dict[str, Any]
    match what:
        case "scale":
            scale: Tables = module.run_scale(
                num_ranks=ranks, **{name: size // (20 if quick else 1) for name, size in (sizes or {}).items()}
            )
            return scale
        case "ssd" if on_gpu:
            title = "The two-way scan, bf16: GPU kernel time and wall time; x: times faster than mamba_ssm"
            return {title: module.scan_on_gpu(quick=quick)}
        case "ssd":
            rows = module.scan_on_cpu((38, 198), repeats=2) if quick else module.scan_on_cpu()
            return {"The two-way scan in plain torch, one image; taken: the chunk that models use": rows}
        case "selective":
            return {
                "Selective scans of a layer, bf16: GPU kernel time; x: times as long as mixlab": module.scans(
                    quick=quick
                ),
                "Forward and backward at 224 px, bf16": module.models(batch=32 if quick else 128),
            }
        case "attention":
            linear = "Linear attention with its softmaxes, bf16: GPU kernel time; x: times faster than plain torch"
            softmax = "Softmax attention over few tokens, bf16: GPU kernel time; x: times faster than SDPA"
            return {
                linear: module.linear_attention_on_gpu(quick=quick),
                softmax: module.softmax_attention_on_gpu(quick=quick),
            }
        case "backbone" if on_gpu:
            return {"Forward and backward, bf16": module.run_gpu()}
        case "backbone":
            forward, growth = module.run_cpu(repeats=2, batch=2, width="tiny") if quick else module.run_cpu()
            return {
                "Forward at 224 px; share: GFLOPs per s beside timm's ViT": forward,
                "Growth with the number of tokens, one image": growth,
            }
        case "crops":
            few = {"num_images": 4, "rounds": 1}
            return {
                "DINO's ten crops per image": module.measure_crops(**(few if quick else {})),
                "Crops of files of 500 x 375 px": module.describe_crops(**({"num_draws": 1000} if quick else {})),
            }
        case "dino":
            rows = module.measure_dino(tiny=quick, steps=1 if quick else 20, peer=peer)
            if quick:
                return {"A DINO step in miniature": rows}
            title = "A DINO step, batch 64, 2 x 224 + 8 x 96 px, 65,536 outputs, bf16"
            return {title: rows, "The same, measured elsewhere": module.PUBLISHED}
        case "feed":
            title = "Images/s of runs on JPEG files of 500 x 375 px, of their step alone, and time spent waiting"
            return {title: module.measure_feed(quick=quick)}
        case "probe":
            rows, cached = module.measure_probe(quick=quick)
            return {"A step of linear probes, from images": rows, "The whole grid on cached features": cached}
        case "knn":
            few = {"num_bank": 20_000, "num_queries": 500, "dim": 64}
            return {
                "Nearest neighbours of random features, all k at once": module.measure_knn(**(few if quick else {}))
            }
        case "dense":
            return dict(module.measure_dense(tiny=quick))
        case "auc":
            rows = module.measure_auc(num_images=200) if quick else module.measure_auc()
            return {"Binary-AUC, one call against loops over the images": rows}
        case "all":
            raise ValueError("all is several benchmarks")
