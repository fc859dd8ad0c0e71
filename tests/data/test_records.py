"""Records by replay: with identical secrets, one odd record moves nothing but its own part."""

import collections
import logging
import random
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from torch import nn
from torch.utils.data import Dataset

import privada as pv
from privada import data
from privada.core.randomness import SeededSource
from privada.preconditioning import FlatScaling
from privada.query.account import Account
from privada.query.executor import Draw

CLIP = 0.5
COUNT, ODD = 24, 9
# What is drawn with the odd record and without it: it comes first, in the middle, or alone.
DRAWS = {
    "first": [ODD, 2, 3, 4, 11, 12, 17],
    "middle": [1, 2, 3, ODD, 12, 20, 21],
    "last": [0, 1, 2, 3, 4, ODD],
    "alone": [ODD],
}


class Visits(Dataset[Any]):
    """Records that are dictionaries; one of them is whatever `odd` makes of it."""

    def __init__(self, odd: Callable[[dict[str, Any], int], Any] | None = None) -> None:
        generator = torch.Generator().manual_seed(1)
        self.values = torch.randn(COUNT, 4, generator=generator)
        self.ward = torch.randint(0, 3, (COUNT,), generator=generator)
        self.odd = odd

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        inputs = {"values": self.values[index], "ward": self.ward[index]}
        target = int(self.ward[index] > 1)
        if index == ODD and self.odd is not None:
            return self.odd(inputs, target)
        return inputs, target


class Ward(nn.Module):
    """Where a ward is not given, everybody is in the first."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.ward = nn.Linear(4, 2), nn.Embedding(3, 2)

    def forward(self, values: Any, ward: Any = None, more: Any = 0) -> Any:
        if ward is None:
            ward = torch.zeros(len(values), dtype=torch.int64)
        return self.linear(values) + self.ward(ward)


def make_trainer(records: Any, model: Any = None, loss: Any = None, **given: Any) -> pv.Trainer:
    torch.manual_seed(0)
    settings: dict[str, Any] = {"batch_size": 8, "steps": 5, "noise_multiplier": 1.0, "delta": 1e-3}
    return pv.Trainer(
        Ward() if model is None else model,
        nn.CrossEntropyLoss() if loss is None else loss,
        records,
        method=pv.methods.DPSGD(lr=0.1, clip=CLIP),
        **settings | given,
    )


def replayed(trainer: pv.Trainer, drawn: list[int]) -> torch.Tensor:
    """Return the clipped sum of some records, from the same secrets each time."""
    executor = trainer.gradients.executor
    executor.model_rng = SeededSource(5, "model")
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002
    random.seed(1)
    drawn_rows = Draw(np.array(drawn, dtype=np.int64))
    return executor.clipped_sum(drawn_rows, FlatScaling(None, None), CLIP).value


def moved(trainer: pv.Trainer, drawn: list[int]) -> float:
    """Return how far the odd record moves the sum, in clip norms."""
    without = [index for index in drawn if index != ODD]
    difference = replayed(trainer, drawn).double() - replayed(trainer, without).double()
    return float(difference.norm()) / CLIP


def raising(error: BaseException) -> Callable[[Any, int], Any]:
    def odd(inputs: Any, target: int) -> Any:
        raise error

    return odd


class Angry(dict[str, Any]):
    """A dictionary that fails when it is read."""

    def __contains__(self, name: object) -> bool:
        raise RuntimeError(f"{name} of record {ODD}")


# Records that count as zero: the sum is bit by bit that of the others.
LEFT_OUT: dict[str, Callable[[Any, int], Any]] = {
    "missing name": lambda x, y: ({"values": x["values"]}, y),
    "other name": lambda x, y: ({"values": x["values"], "WARD": x["ward"]}, y),
    "tuple for a dictionary": lambda x, y: (tuple(x.values()), y),
    "no dictionary": lambda x, y: (x["values"], y),
    "no pair": lambda x, y: x,
    "triple": lambda x, y: (x, y, y),
    "None": lambda x, y: None,
    "None as target": lambda x, y: (x, None),
    "words": lambda x, y: (x | {"ward": "intensive care"}, y),
    "float for a whole number": lambda x, y: (x | {"ward": 1.5}, y),
    "float as target": lambda x, y: (x, float(y)),
    "complex": lambda x, y: (x | {"values": x["values"] * 1j}, y),
    "longer": lambda x, y: (x | {"values": torch.ones(5)}, y),
    "one more dimension": lambda x, y: (x | {"values": torch.ones(1, 4)}, y),
    "a list for a tensor": lambda x, y: (x | {"values": x["values"].tolist()}, y),
    "a whole number too large": lambda x, y: (x | {"ward": 1 << 70}, y),
    "beyond the table": lambda x, y: (x | {"ward": 999}, y),
    "a class too many": lambda x, y: (x, 2),
    "not a number": lambda x, y: (x | {"values": torch.full((4,), torch.nan)}, y),
    "a dictionary that fails": lambda x, y: (Angry(x), y),
    "raises": raising(ValueError(f"record {ODD}")),
    "exits": raising(SystemExit(ODD)),
    "claims an interrupt": raising(KeyboardInterrupt(ODD)),
    "generator exit": raising(GeneratorExit(ODD)),
    "ends the world": raising(type("Own", (BaseException,), {})(ODD)),
}
# Records that are used, and may move the sum by their own clipped gradient.
USED: dict[str, Callable[[Any, int], Any]] = {
    "ordered": lambda x, y: (collections.OrderedDict(reversed(x.items())), y),
    "more names": lambda x, y: (x | {"more": torch.ones(7)}, y),
    "list for a tuple": lambda x, y: [x, y],
    "array": lambda x, y: (x | {"values": x["values"].numpy()[::-1]}, np.int8(y)),
    "whole numbers for floats": lambda x, y: (x | {"values": torch.ones(4).long()}, y),
    "double": lambda x, y: (x | {"values": 10 * x["values"].double()}, y),
    "half": lambda x, y: (x | {"values": x["values"].half()}, y),
    "truth": lambda x, y: (x, bool(y)),
    "with a history": lambda x, y: (x | {"values": x["values"].clone().requires_grad_()}, y),
    "huge": lambda x, y: (x | {"values": torch.full((4,), 1e30)}, y),
}


@pytest.mark.parametrize("engine", ["one-pass", "loop"])
@pytest.mark.parametrize("odd", LEFT_OUT.values(), ids=LEFT_OUT)
def test_a_record_that_does_not_fit_is_as_if_it_were_absent(odd: Any, engine: str) -> None:
    trainer = make_trainer(Visits(odd), engine=engine)
    for drawn in DRAWS.values():
        without = [index for index in drawn if index != ODD]
        assert torch.equal(replayed(trainer, drawn), replayed(trainer, without))


@pytest.mark.parametrize("odd", USED.values(), ids=USED)
def test_a_record_of_other_types_moves_the_sum_by_its_own_part_alone(odd: Any) -> None:
    trainer = make_trainer(Visits(odd))
    for drawn in DRAWS.values():
        assert 0 < moved(trainer, drawn) <= 1 + 1e-6


def test_what_all_others_get_does_not_follow_from_the_first_record_drawn() -> None:
    """One record without a ward must not take everybody's ward away."""
    missing = replayed(make_trainer(Visits(LEFT_OUT["missing name"])), list(range(1, COUNT)))
    usual = replayed(make_trainer(Visits()), [i for i in range(1, COUNT) if i != ODD])
    assert torch.equal(missing, usual)
    assert float(usual[-6:].norm()) > 0  # the wards are trained


def test_a_declared_example_takes_the_place_of_the_first_record() -> None:
    class OddFirst(Visits):
        def __getitem__(self, index: int) -> Any:
            inputs, target = super().__getitem__(index)
            return ({"values": inputs["values"]} if index == 0 else inputs), target

    example = {"values": torch.zeros(4), "ward": 0}, 0
    trainer = make_trainer(OddFirst(), example=example)
    without = replayed(make_trainer(Visits()), [1, 2, 3])
    assert torch.equal(replayed(trainer, [0, 1, 2, 3]), without)
    with pytest.raises(pv.ArgumentError, match="example=None"):
        make_trainer((torch.zeros(9, 4), torch.zeros(9).long()), nn.Linear(4, 2), example=example)
    with pytest.raises(pv.DataError, match="example has something else"):
        make_trainer(Visits(), example="x")


def test_the_first_record_decides_for_the_parts_of_a_search() -> None:
    """Which record comes first in a part is a matter of coins, and of nobody else."""
    part = data.Part(Visits(LEFT_OUT["missing name"]), [ODD, 1, 2, 3])
    records = data.load(part, torch.float32, torch.device("cpu"))
    assert set(records.example.inputs) == {"values", "ward"}


def test_records_are_asked_for_one_by_one() -> None:
    class Together(Visits):
        def __getitems__(self, indices: list[int]) -> Any:
            raise AssertionError("records meet here")

    assert moved(make_trainer(Together()), DRAWS["first"]) > 0


def test_a_record_that_is_given_in_a_buffer_of_all_is_copied_at_once() -> None:
    class Reused(Visits):
        buffer = torch.zeros(1 << 15)  # a small one would be taken for a figure that is carried

        def __getitem__(self, index: int) -> Any:
            inputs, target = super().__getitem__(index)
            self.buffer[:4] = inputs["values"]
            return inputs | {"values": self.buffer[:4]}, target

    drawn = DRAWS["middle"]
    assert torch.equal(
        replayed(make_trainer(Reused()), drawn), replayed(make_trainer(Visits()), drawn)
    )


def test_public_records_that_do_not_fit_are_told() -> None:
    records = data.load(Visits(LEFT_OUT["longer"]), torch.float32, torch.device("cpu"), public=True)
    with pytest.raises(pv.DataError, match=f"record {ODD}"):
        records.fetch(np.arange(COUNT))


def test_the_first_record_says_nothing_in_the_error() -> None:
    class Torn(Visits):
        def __getitem__(self, index: int) -> Any:
            raise ValueError("the patient's name")

    with pytest.raises(pv.DataError, match=r"first item cannot be read \(ValueError\)") as caught:
        make_trainer(Torn())
    assert caught.value.__context__ is None
    assert "name" not in str(caught.value)


# ---------------------------------------------------------------------- models that fail


class Refusing(Ward):
    """Fails on some records, in training and in evaluation mode."""

    def forward(self, values: Any, ward: Any = None, more: Any = 0) -> Any:
        if bool((values.detach() > 50).any()):
            raise SystemExit("a private value")
        return super().forward(values, ward)


def test_a_record_on_which_the_model_exits_leaves_the_others_bit_by_bit() -> None:
    trainer = make_trainer(
        Visits(lambda x, y: (x | {"values": torch.full((4,), 99.0)}, y)), Refusing(), engine="loop"
    )
    for drawn in DRAWS.values():
        without = [index for index in drawn if index != ODD]
        assert torch.equal(replayed(trainer, drawn), replayed(trainer, without))


def test_masks_are_as_if_a_record_that_fails_had_never_been_there() -> None:
    class Dropped(Refusing):
        def forward(self, values: Any, ward: Any = None, more: Any = 0) -> Any:
            return nn.functional.dropout(super().forward(values, ward), 0.5)

    odd = lambda x, y: (x | {"values": torch.full((4,), 99.0)}, y)  # noqa: E731
    trainer = make_trainer(Visits(odd), Dropped(), engine="loop")
    assert torch.equal(replayed(trainer, [1, 2, 3, ODD]), replayed(trainer, [1, 2, 3]))


def test_a_score_of_a_record_that_does_not_fit_is_the_worst_and_moves_no_other() -> None:
    from privada.accounting import Ledger
    from privada.noise import GaussianNoise
    from privada.query.scores import Scorer, accuracy

    torch.manual_seed(0)
    model, values = Ward(), []
    for odd in (LEFT_OUT["missing name"], LEFT_OUT["exits"], LEFT_OUT["beyond the table"]):
        scorer = Scorer(
            data.load(Visits(odd), torch.float32, torch.device("cpu")),
            accuracy(),
            population=COUNT,
            account=Account(Ledger(None), run="run", purpose="validation"),
            noise=GaussianNoise(SeededSource(3, "noise")),
            model_rng=SeededSource(3, "model"),
        )
        values.append(scorer.query(model, 1.0).value)
    assert values == values[:1] * 3


# ---------------------------------------------------------------------- randomness


class Jittered(Visits):
    """Augments with whatever generator it is told to; one record draws more than others."""

    def __init__(self, draw: Callable[[int], Any]) -> None:
        super().__init__()
        self.draw = draw

    def __getitem__(self, index: int) -> Any:
        inputs, target = super().__getitem__(index)
        drawn = torch.as_tensor(np.asarray(self.draw(50 if index == ODD else 4)))[:4]
        return inputs | {"values": inputs["values"] + 9 * drawn.float()}, target


GLOBAL: dict[str, Callable[[int], Any]] = {
    "torch": torch.rand,
    "numpy": np.random.rand,
    "numpy's normals": np.random.randn,
    "random": lambda count: [random.random() for _ in range(count)],
}


def positions() -> tuple[Any, ...]:
    """Return where the global generators are."""
    numpy = np.random.get_state()  # noqa: NPY002
    return (
        torch.get_rng_state().tolist(), numpy[1].tolist(), numpy[2:], random.getstate(),
    )  # fmt: skip


@pytest.mark.parametrize("draw", GLOBAL.values(), ids=GLOBAL)
def test_augmentation_of_one_record_shifts_no_others_draws(draw: Any) -> None:
    trainer = make_trainer(Jittered(draw))
    for drawn in DRAWS.values():
        assert 0 < moved(trainer, drawn) <= 1 + 1e-6


@pytest.mark.parametrize("draw", GLOBAL.values(), ids=GLOBAL)
def test_generators_are_afterwards_where_they_were(draw: Any) -> None:
    np.random.seed(3)  # noqa: NPY002
    np.random.randn()  # noqa: NPY002  # which holds back another one
    random.seed(3)
    before = positions()
    trainer = make_trainer(Jittered(draw))
    torch.manual_seed(0)
    found = positions()
    trainer.step()
    assert positions() == found
    assert found[1:] == before[1:]


def test_augmentation_is_secret_fresh_and_reproducible_with_a_seed() -> None:
    class Seen(Jittered):
        seen: dict[int, float]

        def __getitem__(self, index: int) -> Any:
            inputs, target = super().__getitem__(index)
            self.seen[len(self.seen)] = float(inputs["values"][0])
            return inputs, target

    def seen(seed: int | None) -> list[float]:
        records = Seen(torch.rand)
        records.seen = {}
        torch.manual_seed(0)
        trainer = make_trainer(records, batch_size=COUNT, steps=2, seed=seed)
        before = len(records.seen)
        trainer.fit()
        return list(records.seen.values())[before:]

    one, other, again = seen(4), seen(None), seen(4)
    assert len(one) == 2 * COUNT
    assert one == again
    assert not set(one) & set(other)
    assert not set(one[:COUNT]) & set(one[COUNT:])


def jitter(record: Any, generator: torch.Generator) -> Any:
    inputs, target = record
    return inputs + 9 * torch.rand(inputs.shape, generator=generator), target


def linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(4, 2)


def test_a_transform_gets_a_generator_for_each_record() -> None:
    x = torch.randn(COUNT, 4)
    y = (x.sum(dim=1) > 0).long()

    class Pairs(Dataset[Any]):
        def __len__(self) -> int:
            return COUNT

        def __getitem__(self, index: int) -> Any:
            return x[index], y[index]

    sums = []
    for form in ((x, y), (scipy.sparse.csr_matrix(x.numpy()), y), Pairs()):
        trainer = make_trainer(form, linear(), transform=jitter)
        assert 0 < moved(trainer, DRAWS["first"]) <= 1 + 1e-6
        sums.append(replayed(trainer, DRAWS["middle"]))
    assert torch.equal(sums[0], sums[1])
    assert torch.equal(sums[0], sums[2])
    assert not torch.equal(sums[0], replayed(make_trainer((x, y), linear()), DRAWS["middle"]))
    net = nn.Linear(4, 2)
    loop = pv.PrivateLoop(
        net, torch.optim.SGD(net.parameters(), lr=0.1), nn.CrossEntropyLoss(), (x, y),
        clip=CLIP, batch_size=8, steps=1, noise_multiplier=1.0, delta=1e-3, transform=jitter,
    )  # fmt: skip
    for inputs, targets in loop.loader:
        loop.criterion(loop.model(inputs), targets).backward()
        loop._optimizer.step()
    assert loop.steps_done == 1


def test_a_transform_that_works_in_place_changes_no_record_for_good() -> None:
    """Windows of one series overlap: what is done to one would be done to others."""
    series = torch.randn(COUNT + 4)

    class Windows(Dataset[Any]):
        def __len__(self) -> int:
            return COUNT

        def __getitem__(self, index: int) -> Any:
            return series[index : index + 4], {"array": series.numpy()[index : index + 4]}

    def in_place(record: Any, generator: torch.Generator) -> Any:
        inputs, targets = record
        targets["array"] += 1
        return inputs.add_(1), 0

    before = series.clone()
    trainer = make_trainer(Windows(), linear(), transform=in_place)
    assert 0 < moved(trainer, DRAWS["middle"]) <= 1 + 1e-6
    assert torch.equal(series, before)


def test_a_data_set_is_named_among_the_assumptions() -> None:
    said = "What the data set gives for a record depends on that record alone"
    assert said in str(make_trainer(Visits()).statement())
    x = torch.zeros(COUNT, 4)
    assert said not in str(make_trainer((x, x[:, 0].long()), linear()).statement())


RNG = np.random.default_rng(0)


class WithGlobal(Visits):
    def __getitem__(self, index: int) -> Any:
        RNG.random()
        return super().__getitem__(index)


class WithTransform(Visits):
    def __init__(self, transform: Any) -> None:
        super().__init__()
        self.transform = transform


def closure() -> Any:
    generator = random.Random(0)
    return lambda record: generator.random()


OWN: dict[str, Callable[[], Any]] = {
    "torch": lambda: WithTransform(torch.Generator()),
    "numpy": lambda: WithTransform([1, {"rng": np.random.default_rng(0)}]),
    "legacy": lambda: WithTransform(np.random.RandomState(0)),
    "random": lambda: WithTransform(closure()),
    "global": WithGlobal,
    "in a part": lambda: data.Part(WithTransform(random.Random(0)), [0, 1, 2, 3, 4, 5, 6, 7]),
}


@pytest.mark.parametrize("make", OWN.values(), ids=OWN)
def test_a_data_set_with_a_generator_of_its_own_is_refused(make: Any) -> None:
    with pytest.raises(pv.DataError, match=r"transform=f with f\(record, generator\)"):
        make_trainer(make())
    data.load(make(), torch.float32, torch.device("cpu"), public=True)


def test_global_generators_and_those_of_the_system_may_be_kept() -> None:
    kept = [random._inst, random.SystemRandom(), np.random.mtrand._rand, torch.default_generator]  # type: ignore[attr-defined]
    make_trainer(WithTransform(kept))


# ---------------------------------------------------------------------- what escapes


def noisy(inputs: Any, target: int) -> Any:
    """A record that does everything to be heard."""
    secret = "record 9 has a strange encoding"
    warnings.warn(secret, stacklevel=1)
    logging.getLogger("a.library").critical(secret)
    logging.error(secret)
    print(secret)
    print(secret, file=sys.stderr)
    sys.stdout.write(secret)
    sys.stdout.flush()
    HELD.write(secret)
    torch.tensor(np.frombuffer(b"12345678", np.float64))  # which torch itself warns about
    torch.from_numpy(np.frombuffer(b"12345678", np.float64))
    return inputs, target


HELD = sys.stdout


def test_what_a_record_warns_logs_and_prints_stays_inside(
    capsys: Any, caplog: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "HELD", sys.stdout)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        trainer = make_trainer(Visits(noisy))
        said.clear()
        assert 0 < moved(trainer, DRAWS["first"]) <= 1 + 1e-6
        # it is also heard of again, and so are all others
        print("a word", flush=True)
        logging.getLogger("a.library").critical("logged")
        warnings.warn("warned", stacklevel=1)
    assert [str(each.message) for each in said] == ["warned"]
    assert capsys.readouterr() == ("a word\n", "")
    assert [record.message for record in caplog.records] == ["logged"]


def test_warnings_that_are_errors_do_not_make_a_record_fail() -> None:
    trainer = make_trainer(Visits(noisy))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert moved(trainer, DRAWS["first"]) > 0


# ---------------------------------------------------------------------- shapes


class Words(Dataset[Any]):
    """Records of different lengths."""

    def __init__(self, form: Callable[[list[int]], Any]) -> None:
        self.form = form

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        return self.form([1 + (index + place) % 9 for place in range(index % 7)]), index % 2


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 2, padding_idx=0)

    def forward(self, words: Any) -> Any:
        return self.table(words).sum(dim=1)


@pytest.mark.parametrize(
    "form",
    [
        lambda words: torch.tensor(words, dtype=torch.int64),
        lambda words: np.array(words, int),
        list,
    ],
    ids=["tensor", "array", "list"],
)
def test_records_of_different_lengths_are_padded(form: Any) -> None:
    trainer = make_trainer(Words(form), Bag(), collate=pv.pad_to(5))
    batch, found = trainer._run.records.read(np.arange(COUNT), trainer_streams())
    assert batch is not None
    assert batch.inputs.shape == (COUNT, 5)
    assert found.tolist() == list(range(COUNT))
    assert batch.inputs[6].tolist() == [7, 8, 9, 1, 2]
    assert batch.inputs[2].tolist() == [3, 4, 0, 0, 0]
    for drawn in DRAWS.values():
        assert moved(trainer, drawn) <= 1 + 1e-6
    trainer.fit()


def trainer_streams() -> Any:
    from privada.core.hidden_streams import HiddenStreams

    return HiddenStreams(SeededSource(1, "model"), torch.device("cpu"))


def test_targets_are_padded_where_that_is_asked_for() -> None:
    pad = pv.pad_to(3, value=1, target=-100)
    inputs, targets = pad([({"a": torch.zeros(2, 2), "n": 4}, np.array([7]))])
    assert inputs["a"].tolist() == [[[0, 0], [0, 0], [1, 1]]]
    assert inputs["n"].tolist() == [4]
    assert targets.tolist() == [[7, -100, -100]]


def test_a_collate_that_follows_the_longest_is_refused() -> None:
    def longest(records: list[Any]) -> Any:
        inputs = nn.utils.rnn.pad_sequence([record[0] for record in records], batch_first=True)
        return inputs, torch.tensor([record[1] for record in records])

    records = Words(lambda words: torch.tensor([1, *words]))
    with pytest.raises(pv.ArgumentError, match=r"pv.pad_to\(length\)"):
        make_trainer(records, Bag(), collate=longest)
    with pytest.raises(pv.DataError, match="collate does not turn"):
        make_trainer(records, Bag(), collate=lambda records: 1 / 0)
    with pytest.raises(pv.ArgumentError, match="collate to be a function"):
        make_trainer(records, Bag(), collate=3)


def test_a_sparse_matrix_of_the_caller_is_left_as_it_is() -> None:
    parts = (np.array([1.0, 2.0, 3.0, 4.0]), np.array([2, 0, 0, 1]), np.array([0, 3, 4]))
    matrix = scipy.sparse.csr_matrix(parts, shape=(2, 3))
    records = data.load((matrix, np.zeros(2)), torch.float32, torch.device("cpu"))
    assert matrix.data.tolist() == [1.0, 2.0, 3.0, 4.0]
    assert matrix.indices.tolist() == [2, 0, 0, 1]
    assert records.fetch(np.arange(2)).dense().inputs.tolist() == [[5, 0, 1], [0, 4, 0]]


@pytest.mark.parametrize(
    "inputs", [[[1.0, 2.0], [1.0]], [[1.0, 2.0], ["Smith", 1.0]], [[1.0, 2.0], [10**400, 1.0]]]
)
def test_what_cannot_be_converted_is_not_quoted(inputs):
    with pytest.raises(pv.DataError, match="cannot be converted") as refused:
        data.load((inputs, [0.0, 1.0]), torch.float32, torch.device("cpu"))
    assert refused.value.__cause__ is None
    assert refused.value.__context__ is None


class Windows(Dataset[Any]):
    """Records that lie in one series and overlap."""

    def __init__(self) -> None:
        self.series = torch.randn(1 << 15, generator=torch.Generator().manual_seed(2))

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        return self.series[index : index + 4], index % 2


def test_a_collate_that_works_in_place_changes_no_other_record() -> None:
    def collate(records: list[Any]) -> Any:
        x, y = records[0]
        return (x[:4] if len(x) > 4 else x.mul_(-3.0))[None], torch.tensor([y])

    drawn, records = [ODD, *(i for i in range(COUNT) if i != ODD)], Windows()
    before = records.series.clone()
    trainer = make_trainer(records, linear(), collate=collate)
    assert moved(trainer, drawn) <= 1 + 1e-6
    assert torch.equal(records.series, before)
