"""Masks as runs."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from mixlab.app.questions import SIDE, MaskRuns, decode_runs, encode_runs

CHECK = TypeAdapter(MaskRuns)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 64))
def test_a_mask_comes_back_from_its_runs(seed: int, block: int) -> None:
    random = np.random.default_rng(seed)
    coarse = random.choice(np.array([0, 1, 255], dtype=np.uint8), size=(SIDE // block + 1, SIDE // block + 1))
    mask = np.kron(coarse, np.ones((block, block), dtype=np.uint8))[:SIDE, :SIDE]
    runs = encode_runs(mask)
    np.testing.assert_array_equal(decode_runs(runs), mask)
    assert all(left[0] != right[0] for left, right in pairwise(runs)), "neighbours differ"


@pytest.mark.parametrize(
    ("runs", "words"),
    [
        ([], "at least 1"),
        ([[0, SIDE * SIDE - 1]], "not 256 x 256"),
        ([[0, SIDE * SIDE], [1, 1]], "not 256 x 256"),
        ([[7, SIDE * SIDE]], "a mask holds 7"),
        ([[0, -5], [1, SIDE * SIDE + 5]], "a run of -5"),
        ([[0, 10**18]], "a run of"),
        ([[0, 1]] * 30_000, "at most 20000"),
    ],
)
def test_runs_that_are_no_mask_are_refused_with_the_reason(runs: list[list[int]], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        CHECK.validate_python(runs)
