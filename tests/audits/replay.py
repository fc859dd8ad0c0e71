"""The replay audit: run twice on neighbouring data with one set of releases, compare all else.

Two runs have the same secret randomness, and the second is given the releases of the first. The
only thing that differs is one record: it is odd in one run, and not there in the other. Whatever
then differs between the runs is something that a record told beside the releases. The sums before
noise are kept as well: one record may move them by the declared sensitivity and no more.
"""

import contextlib
import hashlib
import io
import json
import logging
import os
import random
import re
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from privada.accounting import events
from privada.core.receipts import Receipt
from privada.noise import GaussianNoise
from privada.participation import PoissonSampler

SLACK = 1 + 1e-6
# Moments of the clock: they differ from run to run, whatever the records are.
_TIMES = re.compile(
    r"\d{4}-\d\d-\d\d(</span>)?((T| | at )\d\d:\d\d(:\d\d(\.\d+)?)?(\+00:00| UTC)?)?"
    r"|\d\d? [A-Z][a-z]+ \d{4}"  # of a heading
)


@dataclass
class Asked:
    """One release: what it was made of, and what came out."""

    before: torch.Tensor
    sensitivity: float
    noise_multiplier: float
    batch_size: float
    value: torch.Tensor


@dataclass
class Seen:
    """All that a run shows, beside the releases themselves."""

    out: str = ""
    raised: str = ""
    logged: list[str] = field(default_factory=list)
    warned: list[str] = field(default_factory=list)
    files: dict[str, Any] = field(default_factory=dict)
    generators: dict[str, Any] = field(default_factory=dict)
    result: Any = None
    releases: list[Asked] = field(default_factory=list)


class _Secrets:
    """The operating system's random bytes, the same in each run.

    They are counted by who asks, so that a library that is loaded in one run alone shifts nothing.
    """

    def __init__(self) -> None:
        self._drawn: Counter[str] = Counter()

    def __call__(self, size: int) -> bytes:
        caller = sys._getframe(1).f_code
        name = f"{caller.co_filename} {caller.co_name}"
        self._drawn[name] += 1
        return hashlib.shake_256(f"{name} {self._drawn[name]}".encode()).digest(size)


def run(
    work: Callable[[], Any],
    *,
    odd: int | None = None,
    there: bool = True,
    played: list[Asked] | None = None,
) -> Seen:
    """Run some work in a folder of its own and return what it shows.

    Args:
        work: what to run, in a folder of its own; it returns plain values and tensors.
        odd: the index of the record in question. It is in every sample, first and last by turns,
            or in none. Without an index samples are left as they are.
        there: whether it is in the samples.
        played: the releases of another run, to be given out again.
    """
    seen, release, draw = Seen(), GaussianNoise.release, PoissonSampler.draw
    draws = 0

    def sampled(self: PoissonSampler, step: int, rng: Any) -> Any:
        nonlocal draws
        found = draw(self, step, rng)
        if odd is None or odd >= self.units:
            return found
        draws += 1
        others = found[found != odd]
        if not there:
            return others
        parts = ([odd], others) if draws % 2 else (others, [odd])
        return np.concatenate(parts).astype(np.int64)

    def released(self: Any, clipped: Any, receipt: Receipt, batch_size: float) -> Any:
        before = clipped.value.detach().clone()
        made = release(self, clipped, receipt, batch_size)
        noise_multiplier = events.multiplier(receipt.event)
        place = len(seen.releases)
        if played is not None and place < len(played):
            value = played[place].value
            if value.shape == made.value.shape and value.dtype == made.value.dtype:
                made = replace(made, value=value.clone())
        kept = made.value.clone()
        seen.releases.append(Asked(before, clipped.sensitivity, noise_multiplier, batch_size, kept))
        return made

    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.chdir(folder),
        mock.patch.object(os, "urandom", _Secrets()),
        mock.patch.object(PoissonSampler, "draw", sampled),
        mock.patch.object(GaussianNoise, "release", released),
        _generators_kept(),
        _written(seen),
        _logs(seen),
        warnings.catch_warnings(record=True) as warned,
    ):
        warnings.simplefilter("always")
        try:
            seen.result = work()
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:
            seen.raised = _raised(error)
        seen.generators = _generators()
        seen.files = _files(Path(folder))
    seen.warned = [f"{each.category.__name__}: {each.message}" for each in warned]
    return seen


def _raised(error: BaseException | None) -> str:
    """Return an exception with all that Python would show beside it."""
    if error is None:
        return ""
    rest = (_raised(error.__cause__), _raised(error.__context__))
    return f"{type(error).__name__}: {error} {rest}"


@contextlib.contextmanager
def _generators_kept() -> Any:
    """Start from known states of the global generators, and put the old ones back."""
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002
    random.seed(0)
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        random.setstate(states[2])


def _generators() -> dict[str, Any]:
    kind, keys, *rest = np.random.get_state()  # noqa: NPY002
    return {
        "torch": torch.get_rng_state().tolist(),
        "numpy": (kind, keys.tolist(), *rest),
        "random": random.getstate(),
    }


@contextlib.contextmanager
def _written(seen: Seen) -> Any:
    """Note what is written to standard output and error, by Python and below it."""
    words = io.StringIO()
    with tempfile.TemporaryFile() as below:
        kept = [os.dup(number) for number in (1, 2)]
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            for number in (1, 2):
                os.dup2(below.fileno(), number)
            with contextlib.redirect_stdout(words), contextlib.redirect_stderr(words):
                yield
        finally:
            for number, old in zip((1, 2), kept, strict=True):
                os.dup2(old, number)
                os.close(old)
        below.seek(0)
        seen.out = _TIMES.sub("<time>", words.getvalue() + below.read().decode(errors="replace"))


class _Kept(logging.Handler):
    def __init__(self, seen: Seen) -> None:
        super().__init__(0)
        self._seen = seen

    def emit(self, record: logging.LogRecord) -> None:
        self._seen.logged.append(f"{record.levelname} {record.name}: {record.getMessage()}")


@contextlib.contextmanager
def _logs(seen: Seen) -> Any:
    root, handler = logging.getLogger(), _Kept(seen)
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        root.setLevel(level)
        root.removeHandler(handler)


def _files(folder: Path) -> dict[str, Any]:
    """Return what is in the files, but for times; of a data base, its name alone."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            name = str(path.relative_to(folder))
            content = path.read_bytes()
            if content.startswith(b"SQLite"):
                found[name] = "a data base"
            elif b"\0" in content:
                found[name] = hashlib.sha256(content).hexdigest()
            else:
                text = content.decode(errors="replace").replace(str(folder), "<folder>")
                found[name] = _TIMES.sub("<time>", text)
    return found


def plain(value: Any) -> Any:
    """Return values that can be compared, tensors as their bits, times left out."""
    if isinstance(value, torch.Tensor):
        flat = value.detach().contiguous().cpu()
        return (str(flat.dtype), tuple(flat.shape), flat.numpy().tobytes())
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items() if k not in ("first", "last")}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, str):
        return _TIMES.sub("<time>", value)
    if isinstance(value, (np.ndarray, np.generic)):
        return (str(value.dtype), value.shape, value.tobytes())
    return value if isinstance(value, (int, float, bool, type(None))) else repr(value)


def shown(trainer: Any) -> dict[str, Any]:
    """Return everything that a trainer or a loop shows of itself."""
    model = trainer.model
    ledger = trainer.ledger
    return {
        "state": dict(model.state_dict()),
        "gradients": [p.grad for p in model.parameters()],
        "history": [repr(step) for step in getattr(trainer, "history", ())],
        "statement": json.loads(trainer.statement().to_json()),
        "ledger": [(c.run, c.purpose, repr(c.event), c.count) for c in ledger.charges()],
        "steps": trainer.steps_done,
        "training": model.training,
    }


def differences(one: Seen, other: Seen, moves: float = 1.0) -> list[str]:
    """Return in words what an onlooker could tell two runs apart by, and sums that moved.

    A sum may move by so many sensitivities: by one where the record is there or not, by two where
    it is exchanged for another.
    """
    found = []
    for name in ("out", "raised", "logged", "warned"):
        mine, its = getattr(one, name), getattr(other, name)
        if mine != its:
            found.append(f"{name}: {str(mine)[-300:]!r} and {str(its)[-300:]!r}")
    for name in ("files", "generators"):
        mine, its = getattr(one, name), getattr(other, name)
        changed = [key for key in {**mine, **its} if mine.get(key) != its.get(key)]
        if changed:
            found.append(f"{name}: {changed}")
    mine, its = plain(one.result), plain(other.result)
    if mine != its:
        both = isinstance(mine, dict) and isinstance(its, dict)
        parts = [k for k in {**mine, **its} if mine.get(k) != its.get(k)] if both else [""]
        found.append(f"result: {parts}")
    if len(one.releases) != len(other.releases):
        found.append(f"number of releases: {len(one.releases)} and {len(other.releases)}")
    for place, (a, b) in enumerate(zip(one.releases, other.releases, strict=False)):
        facts = [
            (each.before.shape, each.before.dtype, each.sensitivity, each.noise_multiplier,
             each.batch_size, each.value.shape, each.value.dtype)
            for each in (a, b)
        ]  # fmt: skip
        if facts[0] != facts[1]:
            found.append(f"release {place}: {facts[0]} and {facts[1]}")
            continue
        moved = float(torch.linalg.vector_norm((a.before - b.before).double()))
        if not moved <= SLACK * moves * a.sensitivity:
            found.append(f"release {place}: moved by {moved / a.sensitivity:.6g} sensitivities")
    return found
