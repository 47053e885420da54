"""The weighted vote against a plain loop, and against scikit-learn where the weights do not matter."""

import math

import pytest
import torch
import torch.nn.functional as F
from sklearn.neighbors import KNeighborsClassifier

from mixlab.training.knn import knn_accuracy, knn_predict


def features(num: int, dim: int, seed: int) -> torch.Tensor:
    return torch.randn(num, dim, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("k", [1, 5, 20, 500])
def test_the_vote_is_that_of_a_plain_loop(k: int) -> None:
    bank, queries = features(60, 8, 0), features(15, 8, 1)
    labels = torch.arange(60) % 7
    expected = []
    for query in queries:
        cosines = [(float(F.cosine_similarity(query, row, dim=0)), i % 7) for i, row in enumerate(bank)]
        votes = [0.0] * 7
        for cosine, label in sorted(cosines, reverse=True)[:k]:
            votes[label] += math.exp(cosine / 0.07)
        expected.append(votes.index(max(votes)))
    assert knn_predict(bank, labels, queries, num_classes=7, k=k).tolist() == expected


def test_with_one_neighbour_it_is_scikit_learns_classifier() -> None:
    bank, queries, labels = features(200, 16, 2), features(50, 16, 3), torch.arange(200) % 10
    judge = KNeighborsClassifier(n_neighbors=1, metric="cosine").fit(bank.numpy(), labels.numpy())
    assert knn_predict(bank, labels, queries, num_classes=10, k=1).tolist() == judge.predict(queries.numpy()).tolist()


def test_accuracy_is_one_on_the_bank_itself_and_chance_on_noise() -> None:
    bank, labels = features(400, 32, 4), torch.arange(400) % 4
    assert knn_accuracy(bank, labels, bank, labels, num_classes=4, k=1) == 1.0
    noise = knn_accuracy(bank, labels, features(2000, 32, 5), torch.arange(2000) % 4, num_classes=4)
    assert 0.15 < noise < 0.35


def test_a_bank_without_labels_is_refused() -> None:
    with pytest.raises(ValueError, match="one label for each feature"):
        knn_predict(features(3, 2, 0), torch.zeros(2, dtype=torch.int64), features(1, 2, 0), num_classes=2)
