"""Features of records: computed record by record, and kept in files."""

import multiprocessing
import os
import signal
import stat
import time
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import privada as pv
from privada.data import ComputedRows
from privada.features import cache

TARGETS = torch.arange(300) % 3


def inputs(count=300, width=6):
    return torch.randn(count, width, generator=torch.Generator().manual_seed(0))


def encoder():
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Dropout(0.5), nn.Unflatten(1, (1, 5))
    )


def test_features_are_what_the_module_makes_of_each_record_in_evaluation_mode():
    module = encoder()
    module[1](torch.randn(50, 5))  # gives it running statistics
    module[0].eval()
    found, targets = pv.features.extract(module, (inputs(), TARGETS))
    assert [each.training for each in module] == [False, True, True, True]
    assert targets is TARGETS
    assert found.dtype == np.float32
    module.eval()
    with torch.no_grad():
        alone = torch.cat([module(row[None]) for row in inputs()])
    np.testing.assert_allclose(found, alone.flatten(1), rtol=1e-5, atol=1e-6)
    assert not module(inputs()[:1]).isnan().any()


@pytest.mark.parametrize("width", [64, 7])
def test_no_record_changes_a_bit_of_the_others(width):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 33), nn.Tanh(), nn.Linear(33, width))

    def extracted(rows):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*one at a time")
            return pv.features.extract(module, (rows, TARGETS[: len(rows)]))[0]

    whole, order = extracted(inputs()), torch.arange(300).flip(0)[:123]
    assert np.array_equal(whole[order.numpy()], extracted(inputs()[order]))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_records_are_given_in_the_type_of_the_module(dtype):
    module = nn.Linear(6, 64).to(dtype)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*one at a time")
        found, _ = pv.features.extract(module, (inputs(), TARGETS))
    with torch.no_grad():
        expected = module(inputs().to(dtype)).float()
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-2, atol=1e-2)


class Mixing(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.how = how

    def forward(self, x):
        return self.how(x)


@pytest.mark.parametrize(
    "how",
    [
        lambda x: x - x.mean(dim=0),
        lambda x: x / x.abs().max().clamp(min=1),
        lambda x: x.flip(0),
        nn.BatchNorm1d(6, track_running_stats=False),
    ],
)
def test_modules_in_which_records_meet_are_refused(how):
    with pytest.raises(pv.ModelError, match=r"by itself|keeps nothing"):
        pv.features.extract(Mixing(how), (inputs(), TARGETS))


def test_what_cannot_be_followed_runs_a_record_at_a_time():
    def odd(x):
        """Mixes for one number that no made-up record has."""
        x = x.detach().numpy()
        return torch.from_numpy(0 * x if 1.5 in x else np.tanh(x))

    rows = inputs(20)
    rows[3, 0] = 1.5
    with pytest.warns(UserWarning, match="one at a time"):
        found, _ = pv.features.extract(Mixing(odd), (rows, TARGETS[:20]))
    expected = rows.tanh()
    expected[3] = 0
    np.testing.assert_allclose(found, expected, rtol=1e-6)


class Failing(nn.Module):
    """Raises, prints and warns at a number that no made-up record has."""

    def forward(self, x):
        if bool((x == 1.5).any()):
            print("a secret")
            warnings.warn("a secret", stacklevel=1)
            raise ValueError("a secret")
        return 2 * x


def test_a_record_that_fails_counts_as_zero_and_says_nothing(capfd):
    rows = inputs()
    rows[7, 2] = rows[200, 0] = 1.5
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found, _ = pv.features.extract(Failing(), (rows, TARGETS))
    assert [w for w in said if "secret" in str(w.message)] == []
    assert "secret" not in "".join(capfd.readouterr())
    failed = np.isnan(found).any(axis=1)
    assert np.flatnonzero(failed).tolist() == [7, 200]
    np.testing.assert_array_equal(found[~failed], 2 * rows[~failed])

    def trained(data):
        model = nn.Linear(6, 3)
        nn.init.zeros_(model.weight), nn.init.zeros_(model.bias)
        pv.Trainer(
            model, nn.CrossEntropyLoss(), data, method=pv.methods.DPSGD(lr=1.0), batch_size=300,
            sampling="everyone", steps=2, noise_multiplier=1.0, delta=1e-5, seed=0, population=300,
        ).fit()  # fmt: skip
        return model.weight

    without = found[~failed].view(ComputedRows), TARGETS[torch.from_numpy(~failed)]
    torch.testing.assert_close(trained((found, TARGETS)), trained(without))


def test_a_data_set_whose_record_cannot_be_read():
    class Records(torch.utils.data.Dataset):
        def __len__(self):
            return 30

        def __getitem__(self, index):
            if index == 4:
                raise OSError("a secret")
            return inputs()[index], index % 3

    found, targets = pv.features.extract(nn.Linear(6, 2), Records())
    assert np.flatnonzero(np.isnan(found).any(axis=1)).tolist() == [4]
    assert targets.tolist() == [0 if i == 4 else i % 3 for i in range(30)]


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (nn.Linear(5, 2), "accepts the shapes"),
        (Mixing(lambda x: x.log() * 0 + torch.nan), "finite"),
        (Mixing(lambda x: (x, x)), "a row for each record"),
    ],
)
def test_modules_that_make_no_features_are_refused(module, words):
    with pytest.raises(pv.ArgumentError, match=words):
        pv.features.extract(module, (inputs(), TARGETS))


def test_what_is_no_module_is_refused():
    with pytest.raises(pv.ArgumentError, match="torch module"):
        pv.features.extract(torch.tanh, (inputs(), TARGETS))


# ---------------------------------------------------------------------- files


class Counting(nn.Module):
    def __init__(self, factor=2.0):
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(factor))

    def forward(self, x):
        return self.factor * x


def kept(folder, module=None, rows=None):
    """Return features, and whether they were computed."""
    made, before = [], cache._write
    cache._write = lambda *given: made.append(1) or before(*given)
    try:
        rows = inputs() if rows is None else rows
        data = rows, TARGETS[: len(rows)]
        found, _ = pv.features.extract(module or Counting(), data, cache=folder)
    finally:
        cache._write = before
    return found, bool(made)


def test_features_are_kept_for_the_same_module_and_the_same_records(tmp_path):
    place = tmp_path / "kept"
    first, made = kept(place)
    assert made
    (file,) = place.iterdir()
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    again, made = kept(place)
    assert not made
    assert np.array_equal(first, again)
    assert np.array_equal(again, 2 * inputs().numpy())
    assert isinstance(again, ComputedRows)
    assert not again.flags.writeable
    assert kept(place, Counting(3.0))[1]
    assert kept(place, Mixing(lambda x: x))[1]
    assert kept(place, Mixing(lambda x: -x))[1]  # of the same words, but other code
    other = inputs()
    other[299, 5] += 1e-6
    assert kept(place, rows=other)[1]
    assert kept(place, rows=inputs()[:299])[1]
    assert not kept(place)[1]


@pytest.mark.parametrize("damage", ["a bit", "cut", "longer", "empty", "header"])
def test_damaged_files_are_computed_anew(tmp_path, damage):
    place = tmp_path / "kept"
    kept(place)
    (file,) = place.iterdir()
    content = bytearray(file.read_bytes())
    if damage in ("a bit", "header"):
        content[3000 if damage == "a bit" else 20] ^= 4
    wrong = {"cut": content[:-4], "longer": content + b"....", "empty": b""}.get(damage, content)
    file.chmod(0o600)
    file.write_bytes(wrong)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found, made = kept(place)
    assert made
    assert damage == "empty" or any("damaged" in str(w.message) for w in said)
    np.testing.assert_array_equal(found, 2 * inputs())
    assert not kept(place)[1]


def test_a_folder_that_others_can_read_is_refused_and_so_is_a_file(tmp_path):
    place = tmp_path / "open"
    place.mkdir(mode=0o755)
    with pytest.raises(pv.ArgumentError, match=r"mode 755.*chmod 700"):
        kept(place)
    (tmp_path / "file").write_text("")
    with pytest.raises(pv.ArgumentError, match="Cannot keep features"):
        kept(tmp_path / "file")
    with pytest.raises(pv.ArgumentError, match="cache=3"):
        kept(3)


def test_a_run_that_fails_leaves_nothing(tmp_path):
    def parts():
        yield np.zeros((2, 3), np.float32)
        raise KeyboardInterrupt

    file = tmp_path / "x.features"
    with pytest.raises(KeyboardInterrupt):
        cache.keep(file, (4, 3), parts())
    assert list(tmp_path.iterdir()) == []


def _stuck(file):
    def parts():
        yield np.zeros((2, 3), np.float32)
        time.sleep(600)

    cache.keep(file, (4, 3), parts())


def test_what_a_killed_process_left_is_removed_and_what_one_writes_is_not(tmp_path):
    file = tmp_path / "x.features"
    process = multiprocessing.get_context("fork").Process(target=_stuck, args=(file,))
    process.start()
    deadline = time.monotonic() + 60
    while not list(tmp_path.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.1)
    whole = iter([np.ones((4, 3), np.float32)])
    assert cache.keep(file, (4, 3), whole).sum() == 12
    assert len(list(tmp_path.iterdir())) == 2  # beside it, what is being written
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert len(list(tmp_path.iterdir())) == 2
    cache.keep(file, (4, 3), iter([np.ones((4, 3), np.float32)]))
    assert list(tmp_path.iterdir()) == [file]


def test_a_folder_that_is_removed_meanwhile_takes_nothing_away(tmp_path):
    place = tmp_path / "kept"
    found, _ = kept(place)
    (file,) = place.iterdir()
    file.unlink()
    place.rmdir()
    np.testing.assert_array_equal(found, 2 * inputs())
    assert kept(place)[1]
