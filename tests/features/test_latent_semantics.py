"""Latent semantic analysis of public texts, against NumPy."""

import numpy as np
import pytest
import scipy.sparse
import torch

import privada as pv

TEXTS, WORDS, KEPT = 300, 40, 8


def counts(texts=TEXTS, seed=0):
    """Texts of four topics, each with words of its own."""
    rng = np.random.default_rng(seed)
    rates = np.full((texts, WORDS), 0.05)
    for text, topic in enumerate(rng.integers(4, size=texts)):
        rates[text, 10 * topic : 10 * topic + 10] = 0.6
    found = rng.poisson(rates)
    found[:, 7] = 0  # a word that nobody uses
    return found


def by_numpy(public, rows, kept):
    """The definition, with a full decomposition."""
    used = (public > 0).sum(axis=0)
    weights = np.where(used > 0, np.sqrt(len(public) / np.maximum(used, 1)), 0)

    def unit(values):
        norms = np.linalg.norm(values, axis=1, keepdims=True)
        return values / np.where(norms > 0, norms, 1)

    _, _, directions = np.linalg.svd(unit((public > 0) * weights), full_matrices=False)
    return unit(unit((rows > 0) * weights) @ directions[:kept].T)


@pytest.mark.parametrize("form", [np.asarray, scipy.sparse.csr_matrix, scipy.sparse.coo_array])
def test_rows_are_those_of_a_full_decomposition(form):
    public, private = counts(), counts(50, seed=1)
    # four, as there are topics: those after them have nearly the same strength
    found = pv.features.LatentSemantics(form(public), 4)(torch.from_numpy(private).float())
    expected = by_numpy(public, private, kept=4)
    # signs of directions are arbitrary; products of rows are not
    np.testing.assert_allclose(found @ found.T, expected @ expected.T, atol=2e-3)


def test_the_same_texts_give_the_same_directions():
    one, other = (pv.features.LatentSemantics(counts(), KEPT) for _ in range(2))
    assert torch.equal(one.directions, other.directions)


def test_rows_have_norm_one_and_follow_from_their_own_text():
    module = pv.features.LatentSemantics(counts(), KEPT)
    private = torch.from_numpy(counts(30, seed=2)).float()
    found = module(private)
    assert torch.allclose(found.norm(dim=1), torch.ones(30), atol=1e-5)
    torch.testing.assert_close(found[4:5], module(private[4:5]))
    assert not list(module.parameters())


def test_a_text_without_known_words_is_a_row_of_zeros():
    module = pv.features.LatentSemantics(counts(), KEPT)
    unknown = torch.zeros(2, WORDS)
    unknown[1, 7] = 3.0
    assert not bool(module(unknown).any())


def test_how_often_a_word_is_said_and_what_is_below_zero_does_not_count():
    module = pv.features.LatentSemantics(counts(), KEPT)
    once = torch.zeros(1, WORDS)
    once[0, [1, 12]] = 1.0
    often = once * 5
    often[0, 3] = -2.0
    assert torch.equal(module(once), module(often))


def test_it_is_a_map_of_records_one_by_one_for_a_private_model():
    private = counts(400, seed=3)
    topics = np.array([row.reshape(4, 10).sum(axis=1).argmax() for row in private])
    module = pv.features.LatentSemantics(counts(), KEPT)
    model = pv.PrivateClassifier(epsilon=8.0, features=module, seed=0)
    model.fit(scipy.sparse.csr_matrix(private), topics)
    assert model.score(private, topics) > 0.8


@pytest.mark.parametrize(
    ("public", "dimensions", "words"),
    [
        (np.ones(5), 2, "public"),
        (np.ones((0, 5)), 2, "public"),
        ([["a", "b"]], 1, "public"),
        (-np.ones((9, 9)), 2, "not below 0"),
        (np.full((9, 9), np.nan), 2, "finite"),
        (np.ones((9, 9)), 9, "dimensions"),
        (np.ones((9, 9)), 0, "dimensions"),
        (np.ones((9, 9)), 2.5, "dimensions"),
        (None, 2, "public"),
    ],
)
def test_rubbish_is_refused_by_name(public, dimensions, words):
    with pytest.raises(pv.ArgumentError, match=words):
        pv.features.LatentSemantics(public, dimensions)
