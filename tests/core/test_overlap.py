"""Public examples that are the private records are refused; others are not."""

import warnings

import numpy as np
import pytest
import scipy.sparse
import torch
from torch.utils.data import Dataset, Subset, TensorDataset

import privada as pv
from privada.core.errors import DataError
from privada.core.overlap import are_shared, refuse_private, row_digest

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(300, 4)), RNG.integers(0, 2, 300)


class Items(Dataset):
    def __len__(self):
        return 300

    def __getitem__(self, index):
        return torch.from_numpy(X[index]).float(), int(Y[index])


ITEMS = Items()
TENSORS = torch.from_numpy(X), torch.from_numpy(Y)

SAME = {
    "the very object": ((X, Y), (X, Y)),
    "one dataset": (ITEMS, ITEMS),
    "a subset of it": (Subset(ITEMS, [3]), ITEMS),
    "subsets that overlap": (Subset(ITEMS, [1, 2, 3]), Subset(ITEMS, range(3, 300))),
    "a subset of a subset": (Subset(Subset(ITEMS, [5, 7, 9]), [1]), Subset(ITEMS, [7])),
    "rows in the same memory": ((X[5:7], Y[5:7]), (X, Y)),
    "every other row": ((X[::2], Y[::2]), (X, Y)),
    "tensors of the same memory": ((TENSORS[0][290:], TENSORS[1][290:]), (X, Y)),
    "a copy": ((X.copy(), Y.copy()), (X, Y)),
    "a copy in float32": ((X.astype(np.float32), Y.copy()), (X, Y)),
    "a shuffled part": ((X[RNG.permutation(300)[:60]], None), (X, None)),
    "a table that has it all": ((np.vstack([X, X + 9, X - 9]), np.tile(Y, 3)), (X, Y)),
    "tensors in a dataset": (TensorDataset(*TENSORS), (X.copy(), Y.copy())),
    "sparse and dense": ((scipy.sparse.csr_matrix(X), Y.copy()), (X, Y)),
}

OTHER = {
    "other rows": ((RNG.normal(size=(300, 4)), Y), (X, Y)),
    "the rest of one array": ((X[:50], Y[:50]), (X[50:], Y[50:])),
    "odd and even rows": ((X[::2], Y[::2]), (X[1::2], Y[1::2])),
    "disjoint subsets": (Subset(ITEMS, range(9)), Subset(ITEMS, range(9, 300))),
    "two columns of one array": ((X[:, :2], Y), (X[:, 2:], Y)),
    "a few rows in common": ((np.vstack([X[:19], X[:40] + 1]), Y[:59]), (X, Y)),
    "too few to tell of": ((X[:19].copy(), Y[:19].copy()), (X, Y)),
    "other shapes": ((X[:, :3].copy(), Y), (X, Y)),
    "rows of which there are few kinds": (
        (RNG.integers(0, 2, (200, 3)), RNG.integers(0, 2, 200)),
        (RNG.integers(0, 2, (900, 3)), RNG.integers(0, 2, 900)),
    ),
    "one row many times": ((np.repeat(X[:1], 90, 0), np.repeat(Y[:1], 90)), (X, Y)),
}


def _filled(data):
    """Return a pair with targets, those of its rows in `X` where none are given."""
    if isinstance(data, tuple) and data[1] is None:
        places = {row.tobytes(): label for row, label in zip(X, Y, strict=True)}
        return data[0], np.array([places[row.tobytes()] for row in data[0]])
    return data


@pytest.mark.parametrize("kind", SAME)
def test_private_records_are_refused(kind):
    public, private = map(_filled, SAME[kind])
    with pytest.raises(DataError, match="other records than the private ones") as raised:
        refuse_private(public, private)
    assert not any(character.isdigit() for character in str(raised.value))


@pytest.mark.parametrize("kind", OTHER)
def test_other_records_are_not(kind):
    refuse_private(*OTHER[kind])


@pytest.mark.parametrize("odd", [1e300, -1e300, 10**400])
def test_a_record_that_float32_has_no_room_for_leads_to_no_word(odd):
    private = [[float(place), 1.0] for place in range(30)]
    public = [[place + 0.5, 1.0] for place in range(30)]
    private[3][1] = odd
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        refuse_private((public, [0] * 30), (private, [0] * 30))


def digests(rows):
    return [row_digest(str(row).encode()) for row in rows]


def test_rows_that_coincide_by_chance_are_let_through():
    """Two samples of one population with many twins are refused once in a million times."""
    for seed in range(300):
        rng = np.random.default_rng(seed)
        sizes = rng.integers(20, 400, 2)
        kinds = rng.integers(2, 1000)
        public, private = (rng.geometric(1 / kinds, size).tolist() for size in sizes)
        assert not are_shared(digests(public), digests(private))


@pytest.mark.parametrize("twins", [0.0, 0.5, 0.8])
def test_a_part_is_refused_also_where_rows_have_twins(twins):
    rng = np.random.default_rng(1)
    single, double = int(1000 * (1 - twins)), int(1000 * twins)
    private = [*range(single), *(-1 - k // 2 for k in range(double))]
    assert are_shared(digests(rng.permutation(private)[:300].tolist()), digests(private))


@pytest.mark.parametrize(
    "method",
    [
        lambda public: pv.methods.DPAdamPub(lr=0.1, public=public),
        lambda public: pv.methods.AdaDPS(
            lr=0.1, preconditioner=pv.preconditioning.public_gradients(public)
        ),
        lambda public: pv.methods.PASAN(
            lr=0.1, preconditioner=pv.preconditioning.public_moments(public)
        ),
    ],
)
@pytest.mark.parametrize("copied", [False, True])
def test_a_run_refuses_them_before_any_charge(method, copied):
    ledger = pv.Ledger(None, dataset="patients")
    public = (X.copy(), Y.copy()) if copied else pv.Public((X, Y), batch_size=8)
    with pytest.raises(DataError, match="other records"):
        pv.Trainer(
            torch.nn.Linear(4, 2), torch.nn.CrossEntropyLoss(), (X, Y), method=method(public),
            batch_size=10, steps=1, noise_multiplier=1.0, delta=1e-4, ledger=ledger,
        )  # fmt: skip
    assert not ledger.totals()


def test_what_says_that_it_is_not_private_is_not_refused():
    method = pv.methods.AdaDPS(lr=0.1, preconditioner=pv.preconditioning.ideal((X, Y)))
    pv.Trainer(
        torch.nn.Linear(4, 2), torch.nn.CrossEntropyLoss(), (X, Y), method=method,
        batch_size=10, steps=1, noise_multiplier=1.0, delta=1e-4,
    )  # fmt: skip


def test_rows_of_hugging_face_are_compared_as_they_are_stored():
    hugging = pytest.importorskip("datasets")
    rng = np.random.default_rng(4)

    def rows(count, **more):
        tokens = [rng.integers(0, 1000, rng.integers(3, 9)).tolist() for _ in range(count)]
        labels = rng.integers(0, 2, count).tolist()
        return hugging.Dataset.from_dict({"input_ids": tokens, "labels": labels} | more)

    private, other = rows(200), rows(100, source=["web"] * 100)

    def never(batch):
        raise AssertionError("a transform was run")

    parts = private.train_test_split(0.25, seed=0)
    refuse_private(other, private)
    refuse_private(parts["test"], parts["train"])
    refuse_private(private.select(range(15)), private)  # too few to tell of
    for shared in (
        private.select(range(60)),
        private.shuffle(seed=1).with_format("torch"),
        private.remove_columns("labels").add_column("labels", private["labels"]),
        private.select(range(60)).with_transform(never),
        hugging.concatenate_datasets([private.select(range(90)), rows(20)]),
    ):
        with pytest.raises(DataError, match="other records than the private ones"):
            refuse_private(shared, private)
