"""What reads frozen features. Nearest neighbours: seconds for all queries against a bank of ImageNet's size. Linear
probes: what a whole grid of heads costs beside one head, and how fast it trains on cached features.

Neighbours are checked against a sort of all cosines first, and the grid against torch.optim.SGD.
"""

import torch
import torch.nn.functional as F

import mixlab
from mixlab.bench.timing import Row, call_seconds, measured, peak_gib
from mixlab.choices import KS
from mixlab.data.imagenet_labels import NUM_TRAIN, NUM_VAL
from mixlab.data.loader import Batch
from mixlab.evaluation.features import STRATEGIES, FeaturePlan, FeatureTable, HeadInput, head_inputs
from mixlab.evaluation.machine import run_precision
from mixlab.evaluation.probe.heads import HeadGrid, new_head
from mixlab.evaluation.probe.training import CachedStream, ProbeCrops
from mixlab.evaluation.settings import LRS, WEIGHT_DECAYS
from mixlab.training.distributed import World, choose_device
from mixlab.training.knn import knn_correct, nearest
from mixlab.training.precision import matrix_products

BLOCKS = (1, 2, 3, 4)
NUM_BANK, NUM_QUERIES, DIM, NUM_CLASSES = NUM_TRAIN, NUM_VAL, 768, 1000  # ImageNet, a base backbone


def measure_knn(*, num_bank: int = NUM_BANK, num_queries: int = NUM_QUERIES, dim: int = DIM) -> list[Row]:
    """Seconds of the vote for all k at once; the features lie on the device."""
    where = choose_device()
    generator = torch.Generator(where).manual_seed(0)

    def table(number: int) -> FeatureTable:
        features = torch.randn(number, dim, generator=generator, device=where)
        labels = torch.randint(NUM_CLASSES, (number,), generator=generator, device=where)
        return FeatureTable.from_tensors(features, labels)

    bank, queries = table(num_bank), table(num_queries)
    check_knn(bank, queries, where)
    few = FeatureTable.from_tensors(queries.all()[:1024], queries.labels[:1024])
    knn_correct(bank, few, num_classes=NUM_CLASSES, device=where)  # warm up
    right: dict[int, torch.Tensor] = {}

    def answer() -> None:
        right.update(knn_correct(bank, queries, num_classes=NUM_CLASSES, device=where))

    (seconds,) = call_seconds(answer, repeats=1, warm_up=0, device=where)
    row = {"bank": num_bank, "queries": num_queries, "width": dim, "seconds": seconds}
    top1 = float(right[KS[0]].float().mean())  # of random features: chance
    return [{**row, "queries_per_s": num_queries / seconds, "accuracy": top1, "peak_GiB": peak_gib(where)}]


def check_knn(bank: FeatureTable, queries: FeatureTable, device: torch.device) -> None:
    """The nearest of a few queries among some of the bank, against a sort of all cosines in float64."""
    some = FeatureTable.from_tensors(bank.all()[:5000], bank.labels[:5000])
    few = FeatureTable.from_tensors(queries.all()[:64], queries.labels[:64])
    ((cosine, rows),) = nearest(some, few, 20, device=device, bank_block=1024)
    keys, asked = (F.normalize(part.all().double(), dim=-1) for part in (some, few))
    expected = (asked @ keys.mT).sort(dim=1, descending=True).values[:, :20]
    true = (asked[:, None] * keys[rows]).sum(-1)
    off = max(float((true - expected).abs().max()), float((cosine - expected).abs().max()))
    if off > 1e-6:
        raise RuntimeError(f"neighbours are {off:.1e} off the nearest ones; speed is measured at 1e-6 at most")


def measure_augmented(
    *, model: str, image: int, batch: int, num_classes: int, steps: int, device: torch.device
) -> list[Row]:
    """One step from uint8 images to trained heads, for a single head and for the whole grid, one after the other."""
    world = World(device)
    torch.manual_seed(0)
    backbone = mixlab.create_model(model, image=image).to(device).eval().requires_grad_(False)
    pixels = torch.randint(256, (batch, 3, 2 * image, 2 * image), dtype=torch.uint8, device=device)
    labels = torch.randint(num_classes, (batch,), device=device)
    found = Batch(pixels, labels, torch.arange(batch), torch.full((batch, 2), 2 * image))
    crops, precise = ProbeCrops(image, seed=0), run_precision("auto", device)
    rows: list[Row] = []
    for name, inputs, lrs, decays in (
        ("one head", (HeadInput(4, "cls"),), LRS[:1], WEIGHT_DECAYS[:1]),
        ("grid", head_inputs(backbone, BLOCKS, STRATEGIES), LRS, WEIGHT_DECAYS),
    ):
        plan = FeaturePlan.build(backbone, inputs, source="branch", image=image)
        grid = HeadGrid(plan, lrs=lrs, weight_decays=decays, num_classes=num_classes, world=world)

        def make_features(plan: FeaturePlan = plan) -> torch.Tensor:
            with torch.no_grad(), precise():
                return plan.extract(backbone, crops(found, backbone, step=0, world=world))

        def train(grid: HeadGrid = grid, plan: FeaturePlan = plan) -> None:
            grid.step(make_features(plan), labels, lr_scale=1.0)

        with matrix_products(exact=False):
            seconds = min(call_seconds(train, calls=steps, warm_up=3, device=device))
            alone = min(call_seconds(make_features, calls=steps, warm_up=3, device=device))
        row = {"what": name, "heads": len(grid.heads), "ms_per_step": seconds * 1e3, "ms_features": alone * 1e3}
        rows.append(measured({**row, "images_per_s": batch / seconds, "times_one_head": 1.0}))
    rows[1]["times_one_head"] = rows[1]["ms_per_step"] / rows[0]["ms_per_step"]
    return rows


def measure_cached(*, dim: int, batch: int, num_classes: int, num_images: int, steps: int, device: torch.device) -> Row:
    """Images per second of the whole grid on features in half precision, shuffled rows and all."""
    inputs = tuple(HeadInput(blocks, strategy) for blocks in BLOCKS for strategy in STRATEGIES)
    plan = FeaturePlan(inputs, "branch", tuple((pool, (dim,) * max(BLOCKS)) for pool in ("cls", "mean", "max")))
    generator = torch.Generator(device).manual_seed(0)
    dtype = torch.float16
    features = torch.randn(num_images, plan.width, generator=generator, device=device, dtype=torch.float32).to(dtype)
    table = FeatureTable.from_tensors(features, torch.arange(num_images) % num_classes)
    grid = HeadGrid(plan, lrs=LRS, weight_decays=WEIGHT_DECAYS, num_classes=num_classes, world=World(device))
    batches = CachedStream(table, batch=batch, seed=0, device=device).steps(0)

    def train() -> None:
        grid.step(*next(batches), lr_scale=1.0)

    with matrix_products(exact=False):
        seconds = min(call_seconds(train, calls=steps, warm_up=3, device=device))
    return {
        "heads": len(grid.heads),
        "parameters_M": sum(group.weight.numel() for group in grid.groups.values()) / 1e6,
        "batch": batch,
        "ms_per_step": seconds * 1e3,
        "images_per_s": batch / seconds,
    }


def check_probe(device: torch.device) -> float:
    """The largest difference of any weight between the grid and torch.optim.SGD after 20 steps in float32."""
    plan = FeaturePlan((HeadInput(2, "cls+mean"),), "branch", (("cls", (48, 48)), ("mean", (48, 48))))
    grid = HeadGrid(plan, lrs=LRS, weight_decays=WEIGHT_DECAYS, num_classes=50, world=World(device))
    generator = torch.Generator().manual_seed(0)
    (group,) = grid.groups.values()
    alone = [new_head(192, 50, seed=0).to(device) for _ in group.heads]
    optimizers = [
        torch.optim.SGD(linear.parameters(), head.lr * 40, momentum=0.9, weight_decay=head.weight_decay)
        for linear, head in zip(alone, group.heads, strict=True)
    ]
    with matrix_products(exact=True):
        for _ in range(20):
            x = torch.randn(64, 192, generator=generator).to(device)
            labels = torch.randint(50, (64,), generator=generator).to(device)
            grid.step(x, labels, lr_scale=40.0)
            for linear, optimizer in zip(alone, optimizers, strict=True):
                optimizer.zero_grad()
                F.cross_entropy(linear(x), labels).backward()
                optimizer.step()
    off = max(float((group.weight[row] - linear.weight.detach()).abs().max()) for row, linear in enumerate(alone))
    if off > 1e-5:
        raise RuntimeError(f"the grid is {off:.1e} off heads trained alone; speed is measured at 1e-5 at most")
    return off


def measure_probe(*, quick: bool = False) -> tuple[list[Row], list[Row]]:
    """From images, and on cached features: dinovim_small at 224 px on the GPU; or quick, in miniature on the CPU."""
    device = torch.device("cpu" if quick else "cuda")
    check_probe(device)
    if quick:
        rows = measure_augmented(model="dinovim_tiny", image=32, batch=8, num_classes=10, steps=1, device=device)
        return rows, [measure_cached(dim=32, batch=64, num_classes=10, num_images=512, steps=3, device=device)]
    num = NUM_CLASSES
    rows = measure_augmented(model="dinovim_small", image=224, batch=256, num_classes=num, steps=20, device=device)
    return rows, [measure_cached(dim=512, batch=1024, num_classes=num, num_images=100_000, steps=20, device=device)]
