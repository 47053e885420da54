"""Nearest neighbours against a plain double loop, ties and all."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mixlab.evaluation.feature_table import FeatureTable
from mixlab.evaluation.knn import fitting_ks, knn_correct, nearest, vote
from mixlab.training.knn import knn_predict

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
    table = FeatureTable.from_tensors(bank, labels)
    found = torch.full((len(queries),), -1)
    for number in range(num_classes):
        asked = FeatureTable.from_tensors(queries, torch.full((len(queries),), number))
        right = knn_correct(table, asked, num_classes=num_classes, ks=(k,), device=CPU, **blocks)[k]
        found[right] = number
    return found.tolist()


@settings(max_examples=100, deadline=None)
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
def test_random_features_agree_with_the_double_loop_and_with_the_live_score(k: int) -> None:
    generator = torch.Generator().manual_seed(k)
    bank, queries = torch.randn(60, 8, generator=generator), torch.randn(12, 8, generator=generator)
    labels = torch.randint(4, (60,), generator=generator)
    ours = predictions(bank, labels, queries, k, 4)
    assert ours == double_loop(bank, labels.tolist(), queries, k, 4)
    assert ours == knn_predict(bank, labels, queries, num_classes=4, k=k).tolist()


def test_of_equal_cosines_the_lower_number_is_nearer_in_every_block() -> None:
    bank = torch.ones(50, 3) * torch.arange(1, 51)[:, None]  # one direction, many lengths
    table = FeatureTable.from_tensors(bank, torch.zeros(50, dtype=torch.int64))
    query = FeatureTable.from_tensors(torch.rand(4, 3) + 0.1, torch.zeros(4, dtype=torch.int64))
    for block in (1, 3, 7, 49, 50, 64):
        found = torch.cat([rows for _, rows in nearest(table, query, 6, device=CPU, query_block=3, bank_block=block)])
        assert found.tolist() == [[0, 1, 2, 3, 4, 5]] * 4


def test_cosines_are_right_and_fall() -> None:
    generator = torch.Generator().manual_seed(0)
    bank, queries = torch.randn(200, 16, generator=generator), torch.randn(5, 16, generator=generator)
    zeros = torch.zeros(200, dtype=torch.int64)
    ((cosine, rows),) = nearest(
        FeatureTable.from_tensors(bank, zeros), FeatureTable.from_tensors(queries, zeros[:5]), 200, device=CPU
    )
    expected = torch.nn.functional.cosine_similarity(queries.double()[:, None], bank.double()[None], dim=-1)
    torch.testing.assert_close(cosine, expected.gather(1, rows), rtol=0, atol=1e-8)
    assert (cosine.diff(dim=1) <= 0).all() and rows.sort(1).values.tolist() == [list(range(200))] * 5


def test_of_equal_votes_the_lower_class_wins_whatever_the_order() -> None:
    cosine = torch.tensor([[0.9, 0.9, 0.5, 0.5], [0.9, 0.9, 0.5, 0.5]])
    assert vote(cosine, torch.tensor([[3, 1, 1, 3], [1, 3, 3, 1]]), num_classes=5).tolist() == [1, 1]


def test_shares_of_the_queries_give_together_what_one_process_gives() -> None:
    generator = torch.Generator().manual_seed(1)
    bank = FeatureTable.from_tensors(torch.randn(40, 6, generator=generator), torch.arange(40) % 3)
    queries = FeatureTable.from_tensors(torch.randn(11, 6, generator=generator), torch.arange(11) % 3)
    whole = knn_correct(bank, queries, num_classes=3, ks=(5,), device=CPU)[5]
    for rank in range(3):
        share = knn_correct(bank, queries.every(3, rank), num_classes=3, ks=(5,), device=CPU)[5]
        assert torch.equal(share, whole[rank::3])
    assert 0 < whole.sum() < 11


def test_a_bank_is_asked_only_for_the_numbers_of_neighbours_that_it_has() -> None:
    assert fitting_ks((10, 20, 100, 200), 50) == (10, 20)
    assert fitting_ks((20, 5, 20), 20) == (20, 5)
    assert fitting_ks((100, 200), 50) == (50,)


def test_calls_without_neighbours_are_refused() -> None:
    table = FeatureTable.from_tensors(torch.ones(2, 3), torch.tensor([0, 1]))
    none = FeatureTable.from_tensors(torch.ones(0, 3), torch.zeros(0, dtype=torch.int64))
    with pytest.raises(ValueError, match="at least one number from 1"):
        knn_correct(table, table, num_classes=2, ks=(0,), device=CPU)
    with pytest.raises(ValueError, match="nearest of 0 images"):
        knn_correct(none, table, num_classes=2, ks=(1,), device=CPU)
    with pytest.raises(ValueError, match="temperature 0"):
        knn_correct(table, table, num_classes=2, ks=(1,), temperature=0.0, device=CPU)
