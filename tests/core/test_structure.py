"""Records are held to one structure, each by itself."""

import collections
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from privada.core.structure import Misfit, Structure, as_pair
from privada.data import pad_to


class Pair(NamedTuple):
    left: Any
    right: Any


def put(structure: Structure, *records: Any) -> Any:
    rows = structure.rows(len(records))
    for place, record in enumerate(records):
        structure.put(record, rows, place)
    return structure.batch(rows.first(len(records)))


def test_nesting_is_kept_with_tuples_as_lists_and_other_mappings_as_dictionaries() -> None:
    record = (collections.OrderedDict(a=(1, [2.5]), b=Pair(torch.ones(2), np.int8(3))), [4, True])
    inputs, targets = put(Structure(record, torch.float64), record, record)
    assert type(inputs) is dict
    assert list(inputs) == ["a", "b"]
    assert isinstance(inputs["b"], Pair)
    assert inputs["a"][0].tolist() == [1, 1]
    assert inputs["a"][1][0].dtype == inputs["b"].left.dtype == torch.float64
    assert inputs["b"].right.dtype == torch.int64
    assert [each.tolist() for each in targets] == [[4, 4], [1, 1]]


@pytest.mark.parametrize(
    "value",
    [
        torch.ones(3, dtype=torch.bfloat16),
        torch.ones(3, dtype=torch.float16),
        torch.ones(3, dtype=torch.int32),
        torch.ones(3, dtype=torch.bool),
        torch.ones(3).to_sparse(),
        torch.ones(3, 1).requires_grad_()[:, 0],
        torch.nn.Parameter(torch.ones(3)),
        torch.complex(torch.ones(3), -torch.ones(3)).conj().imag,
        np.ones(3, np.float64)[::-1],
        np.ones(3, np.uint8),
    ],
    ids=str,
)
def test_what_stands_for_floats(value: Any) -> None:
    inputs, _ = put(Structure((torch.zeros(3), 0), torch.float32), (value, 1))
    assert torch.equal(inputs, torch.ones(1, 3))
    assert not inputs.requires_grad


@pytest.mark.parametrize(
    "value",
    [
        torch.ones(3), 1.0, np.float32(1), 1j, "1", b"1", None, [1], torch.tensor([1]), np.ones(()),
        np.array("1"), np.array([None], object)[0], 1 << 80,
    ],
    ids=repr,
)  # fmt: skip
def test_what_does_not_stand_for_a_whole_number(value: Any) -> None:
    structure = Structure((torch.zeros(3), 0), torch.float32)
    with pytest.raises((Misfit, TypeError, ValueError, OverflowError)):
        put(structure, (torch.zeros(3), value))


def test_a_record_that_fails_half_way_is_overwritten() -> None:
    structure = Structure((torch.zeros(2), 0), torch.float32)
    rows = structure.rows(2)
    structure.put((torch.ones(2), 1), rows, 0)
    with pytest.raises(Misfit):
        structure.put((torch.full((2,), 9.0), "9"), rows, 1)
    structure.put((torch.ones(2), 2), rows, 1)
    inputs, targets = structure.batch(rows.first(2))
    assert inputs.tolist() == [[1, 1], [1, 1]]
    assert targets.tolist() == [1, 2]


@pytest.mark.parametrize("record", [3, (1,), {"a": 1, "b": 2}, ({}, 1), ((), 1), ("x", 1)], ids=str)
def test_records_that_are_no_pairs_of_numbers_have_no_structure(record: Any) -> None:
    with pytest.raises((TypeError, Misfit)):
        Structure(record, torch.float32)


def test_batches_of_one_lose_their_first_dimension() -> None:
    structure = Structure((torch.zeros(1, 4), torch.zeros(1)), torch.float32, batched=True)
    inputs, targets = put(structure, (torch.ones(1, 4), torch.ones(1)))
    assert (inputs.shape, targets.shape) == ((1, 4), (1,))
    with pytest.raises(Misfit):
        put(structure, (torch.ones(2, 4), torch.ones(1)))


def test_a_record_that_is_one_dictionary_is_a_pair_with_its_lists_as_sequences():
    record = {"tokens": [4, 5], "image": [[0.5, 1.0], [1.5, 2.0]], "labels": 1}
    inputs, target = as_pair(record)
    assert set(inputs) == {"tokens", "image"}
    assert inputs["image"].shape == (2, 2)
    assert target == 1
    assert as_pair((record, 2)) == (record, 2)
    assert as_pair({"tokens": [1]}) == {"tokens": [1]}  # without a target it is no record
    structure = Structure(record, torch.float32)
    rows = structure.rows(2)
    structure.put({"label": 3} | {n: v for n, v in record.items() if n != "labels"}, rows, 0)
    for wrong in ({"tokens": [4, 5, 6]}, {"tokens": ["a", "b"]}, {"tokens": [[4], [5, 6]]}):
        with pytest.raises(Misfit):
            structure.put(record | wrong, rows, 1)
    inputs, target = structure.batch(rows.first(1))
    assert inputs["tokens"].tolist() == [[4, 5]]
    assert target.tolist() == [3]


def test_rows_of_different_lengths_are_padded():
    row = {"tokens": [4, 5], "labels": [1, 0, 1, 1]}
    padded = pad_to(3, target=-100)([row])
    assert {name: values.tolist() for name, values in padded.items()} == {
        "tokens": [[4, 5, 0]],
        "labels": [[1, 0, 1]],
    }
    assert row == {"tokens": [4, 5], "labels": [1, 0, 1, 1]}
