"""Nearest neighbours against a plain double loop, ties and all."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor

from mixlab.training import knn
from mixlab.training.knn import LabelledFeatures, fitting_ks, knn_accuracy, knn_correct, nearest, vote

CPU = torch.device("cpu")


def double_loop(bank: Tensor, labels: list[int], queries: Tensor, k: int, num_classes: int) -> list[int]:
    """DINO's vote in plain Python: equal cosines by the lower number, equal votes for the lower class."""
    answers = []
    for query in queries.double().tolist():
        cosines = []
        for key in bank.double().tolist():
            dot = math.fsum(a * b for a, b in zip(query, key, strict=True))
            norms = math.sqrt(math.fsum(a * a for a in query)) * math.sqrt(math.fsum(b * b for b in key))
            cosines.append(round(dot / norms, 9))
        order = sorted(range(len(bank)), key=lambda index: (-cosines[index], index))[:k]
        votes = [0.0] * num_classes
        for number in range(num_classes):
            votes[number] = math.fsum(math.exp(cosines[i] / 0.07) for i in order if labels[i] == number)
        answers.append(votes.index(max(votes)))  # fsum rounds once: equal votes are equal numbers
    return answers


def predictions(bank: Tensor, labels: Tensor, queries: Tensor, k: int, num_classes: int, **blocks: int) -> list[int]:
    """Our answers, read off which truths come out right."""
    table = LabelledFeatures(bank, labels)
    found = torch.full((len(queries),), -1)
    for number in range(num_classes):
        asked = LabelledFeatures(queries, torch.full((len(queries),), number))
        right = knn_correct(table, asked, num_classes=num_classes, ks=(k,), device=CPU, **blocks)[k]
        found[right] = number
    return found.tolist()


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_answers_are_those_of_a_double_loop(data: st.DataObject) -> None:
    num_keys, num_queries = data.draw(st.integers(1, 30)), data.draw(st.integers(1, 6))
    k, num_classes = data.draw(st.integers(1, 35)), data.draw(st.integers(2, 4))
    # Few different directions, so that equal cosines and equal votes are common.
    direction = st.sampled_from([(1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.6, 0.8, 0.0), (1.0, 2.0, 2.0), (0.0, -1.0, 0.0)])
    bank = torch.tensor(data.draw(st.lists(direction, min_size=num_keys, max_size=num_keys)))
    queries = torch.tensor(data.draw(st.lists(direction, min_size=num_queries, max_size=num_queries)))
    labels = data.draw(st.lists(st.integers(0, num_classes - 1), min_size=num_keys, max_size=num_keys))
    ours = predictions(
        bank,
        torch.tensor(labels),
        queries,
        k,
        num_classes,
        query_block=data.draw(st.integers(1, 7)),
        bank_block=data.draw(st.integers(1, 31)),
    )
    assert ours == double_loop(bank, labels, queries, k, num_classes)


@pytest.mark.parametrize("k", [1, 10, 20])
def test_random_features_agree_with_the_double_loop(k: int) -> None:
    generator = torch.Generator().manual_seed(k)
    bank, queries = torch.randn(60, 8, generator=generator), torch.randn(12, 8, generator=generator)
    labels = torch.randint(4, (60,), generator=generator)
    ours = predictions(bank, labels, queries, k, 4)
    assert ours == double_loop(bank, labels.tolist(), queries, k, 4)


def test_of_equal_cosines_the_lower_number_is_nearer_in_every_block() -> None:
    bank = torch.ones(50, 3) * torch.arange(1, 51)[:, None]  # one direction, many lengths
    table = LabelledFeatures(bank, torch.zeros(50, dtype=torch.int64))
    query = LabelledFeatures(torch.rand(4, 3) + 0.1, torch.zeros(4, dtype=torch.int64))
    for block in (1, 3, 7, 49, 50, 64):
        found = torch.cat([rows for _, rows in nearest(table, query, 6, device=CPU, query_block=3, bank_block=block)])
        assert found.tolist() == [[0, 1, 2, 3, 4, 5]] * 4


def test_cosines_are_right_and_fall() -> None:
    generator = torch.Generator().manual_seed(0)
    bank, queries = torch.randn(200, 16, generator=generator), torch.randn(5, 16, generator=generator)
    zeros = torch.zeros(200, dtype=torch.int64)
    ((cosine, rows),) = nearest(LabelledFeatures(bank, zeros), LabelledFeatures(queries, zeros[:5]), 200, device=CPU)
    expected = torch.nn.functional.cosine_similarity(queries.double()[:, None], bank.double()[None], dim=-1)
    torch.testing.assert_close(cosine, expected.gather(1, rows), rtol=0, atol=1e-8)
    assert (cosine.diff(dim=1) <= 0).all() and rows.sort(1).values.tolist() == [list(range(200))] * 5


def test_of_equal_votes_the_lower_class_wins_whatever_the_order() -> None:
    cosine = torch.tensor([[0.9, 0.9, 0.5, 0.5], [0.9, 0.9, 0.5, 0.5]])
    assert vote(cosine, torch.tensor([[3, 1, 1, 3], [1, 3, 3, 1]]), num_classes=5).tolist() == [1, 1]


def test_shares_of_the_queries_give_together_what_one_process_gives() -> None:
    generator = torch.Generator().manual_seed(1)
    bank = LabelledFeatures(torch.randn(40, 6, generator=generator), torch.arange(40) % 3)
    queries = LabelledFeatures(torch.randn(11, 6, generator=generator), torch.arange(11) % 3)
    whole = knn_correct(bank, queries, num_classes=3, ks=(5,), device=CPU)[5]
    for rank in range(3):
        own = LabelledFeatures(queries.features[rank::3], queries.labels[rank::3])
        share = knn_correct(bank, own, num_classes=3, ks=(5,), device=CPU)[5]
        assert torch.equal(share, whole[rank::3])
    assert 0 < whole.sum() < 11


def test_with_one_neighbour_it_is_scikit_learns_classifier() -> None:
    generator = torch.Generator().manual_seed(2)
    bank, queries = torch.randn(200, 16, generator=generator), torch.randn(50, 16, generator=generator)
    labels = torch.arange(200) % 10
    judge = KNeighborsClassifier(n_neighbors=1, metric="cosine").fit(bank.numpy(), labels.numpy())
    assert predictions(bank, labels, queries, 1, 10) == judge.predict(queries.numpy()).tolist()


def test_accuracy_is_one_on_the_bank_itself_and_chance_on_noise() -> None:
    options = {"num_classes": 4, "temperature": 0.07, "device": CPU}
    generator = torch.Generator().manual_seed(4)
    bank = LabelledFeatures(torch.randn(400, 32, generator=generator), torch.arange(400) % 4)
    assert knn_accuracy(bank, bank, k=1, **options) == 1.0
    noise = LabelledFeatures(torch.randn(2000, 32, generator=generator), torch.arange(2000) % 4)
    assert 0.15 < knn_accuracy(bank, noise, k=20, **options) < 0.35


def test_a_bank_is_asked_only_for_the_numbers_of_neighbours_that_it_has() -> None:
    assert fitting_ks((10, 20, 100, 200), 50) == (10, 20)
    assert fitting_ks((20, 5, 20), 20) == (20, 5)
    assert fitting_ks((100, 200), 50) == (50,)


def test_calls_without_neighbours_are_refused() -> None:
    table = LabelledFeatures(torch.ones(2, 3), torch.tensor([0, 1]))
    none = LabelledFeatures(torch.ones(0, 3), torch.zeros(0, dtype=torch.int64))
    with pytest.raises(ValueError, match="at least one number from 1"):
        knn_correct(table, table, num_classes=2, ks=(0,), device=CPU)
    with pytest.raises(ValueError, match="the bank has 0 images"):
        knn_correct(none, table, num_classes=2, ks=(1,), device=CPU)
    with pytest.raises(ValueError, match="k is 3, and the bank has 2 features; give a k of 1 to 2"):
        knn_accuracy(table, table, k=3)
    with pytest.raises(ValueError, match="temperature is 0"):
        knn_correct(table, table, num_classes=2, ks=(1,), temperature=0.0, device=CPU)


def slow_nearest(monkeypatch: pytest.MonkeyPatch, *given: object, **settings: object) -> list[tuple[Tensor, Tensor]]:
    """With float64 throughout."""
    with monkeypatch.context() as patch:
        patch.setattr(knn, "_from_candidates", lambda *ignored: None)
        return list(nearest(*given, **settings))


@pytest.mark.parametrize("kind", ["random", "clustered", "half precision", "close together"])
def test_candidates_from_float32_give_the_neighbours_of_float64(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(1)
    bank, queries = torch.randn(3000, 32, generator=generator), torch.randn(70, 32, generator=generator)
    if kind == "clustered":
        bank = bank[:40].repeat(75, 1) + 1e-3 * bank
    elif kind == "half precision":
        bank, queries = bank.half().float(), queries.half().float()
    elif kind == "close together":  # cosines differ by less than float32 can tell: only float64 may answer
        bank, queries = 1 + 1e-6 * bank, 1 + 1e-6 * queries
    found = [LabelledFeatures(part, torch.zeros(len(part), dtype=torch.int64)) for part in (bank, queries)]
    answered: list[bool] = []
    quick = knn._from_candidates

    def noted(*given: object) -> Tensor | None:
        keys = quick(*given)
        answered.append(keys is not None)
        return keys

    monkeypatch.setattr(knn, "_from_candidates", noted)
    ours = list(nearest(*found, 20, device=CPU, query_block=32, bank_block=1000))
    theirs = slow_nearest(monkeypatch, *found, 20, device=CPU, query_block=32, bank_block=1000)
    assert answered == [kind != "close together"] * 3
    for (cosine, rows), (exact, expected) in zip(ours, theirs, strict=True):
        assert torch.equal(rows, expected) and (cosine - exact).abs().max() <= 2.0**-30
