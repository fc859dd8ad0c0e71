"""Checkpoints: one file, written whole or not at all, that holds values and no code."""

import contextlib
import hashlib
import io
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from privada.core.errors import CheckpointError
from privada.core.randomness import SeededSource
from privada.core.validation import integer, positive
from privada.train.evaluations import Evaluation
from privada.train.run import Run
from privada.train.state import TrainState

# The file is this mark, the SHA-256 of what follows, and a dictionary as torch saves it.
_MARK = b"PRIVADA\x01"
# Format 1 had `shape` and `done` in the place of `preconditioner` and `releases`, and no `clip`.
_VERSION = 2
_KINDS = {
    "settings": dict,
    "run": str,
    "step": int,
    "releases": int,
    "finished": bool,
    "prepared": bool,
    "preconditioner": dict,
    "clip": dict,
    "model": dict,
    "rule": dict,
    "controller": dict,
    "rates": list,
    "positions": dict,
}


def write(path: str | os.PathLike[str], content: dict[str, Any]) -> None:
    """Write a checkpoint so that a crash leaves the old file or the new one, never a part."""
    target = Path(path)
    try:
        handle, draft = tempfile.mkstemp(
            prefix=f".{target.name}.", suffix=".new", dir=target.parent
        )
    except OSError as error:
        raise CheckpointError(
            f"Cannot write the checkpoint {str(target)!r}: {error.strerror}. "
            "Check that the folder exists and may be written."
        ) from error
    try:
        with os.fdopen(handle, "wb") as file:
            packed = io.BytesIO()
            torch.save({"version": _VERSION, **content}, packed)
            file.write(_MARK + hashlib.sha256(packed.getvalue()).digest())
            file.write(packed.getvalue())
            file.flush()
            os.fsync(file.fileno())
        Path(draft).replace(target)
    except (OSError, RuntimeError) as error:
        raise CheckpointError(
            f"Cannot write the checkpoint {str(target)!r}: {error}. The old one is untouched."
        ) from error
    finally:
        with contextlib.suppress(FileNotFoundError):
            Path(draft).unlink()


def read(path: str | os.PathLike[str], settings: dict[str, Any]) -> dict[str, Any]:
    """Return a run's checkpoint; refuse one that was made with other settings."""
    name = str(path)
    content = load(path, _KINDS, "Trainer.save", _upgraded)
    saved = content["settings"]
    differing = [key for key in settings if saved.get(key) != settings[key]]
    if differing:
        listed = "; ".join(f"{k}: {saved.get(k)!r} there, {settings[k]!r} here" for k in differing)
        raise CheckpointError(
            f"Expected the checkpoint {name!r} to be of this run, but it differs in {listed}. "
            "Resume with the settings that the run was started with."
        )
    return content


def _upgraded(content: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a run's checkpoint of format 1 in the present format."""
    saved = dict(content.get("settings") or {})
    method = str(saved.get("method", ""))
    if method.startswith("dp2-rmsprop"):
        raise CheckpointError(
            "Cannot go on from a checkpoint of dp2-rmsprop that an earlier Privada wrote: its "
            "scales are in other units now. Go on with the version that wrote it, or start anew; "
            "the ledger still knows what was spent."
        )
    saved["method"] = method.replace("geometry=", "preconditioner=")
    saved.setdefault("noise", "independent")
    content = {**content, "settings": saved, "version": _VERSION, "clip": {}}
    if isinstance(content.get("model"), dict):  # torch.compile's names of what it was given
        content["model"] = {
            str(name).removeprefix("_orig_mod."): value for name, value in content["model"].items()
        }
    for now, former in (("preconditioner", "shape"), ("releases", "done")):
        if former in content:
            content[now] = content.pop(former)
    return content


def packed(
    run: Run,
    state: TrainState,
    rates: list[float],
    evaluated: list[Evaluation],
    fingerprint: dict[str, Any],
) -> dict[str, Any]:
    """Return what a checkpoint of a run holds: post-processing of releases, and no key."""
    positions = {
        use: source.position
        for use, source in run.sources.items()
        if isinstance(source, SeededSource)
    }
    return {
        "settings": fingerprint,
        "run": run.charges.run,
        "model": run.model.state_dict(),
        "rates": rates,
        "evaluations": [each.plain() for each in evaluated],
        "multipliers": list(run.charges.multipliers),
        "noise_multiplier": run.mechanism.noise_multiplier,
        "positions": positions,
        **{each.name: getattr(state, each.name) for each in fields(state)},
    }


def restore(saved: dict[str, Any], run: Run, first: TrainState) -> TrainState:
    """Put a checkpoint's model and places in random streams back; return its state."""
    own, there = (
        {name: tuple(getattr(value, "shape", ())) for name, value in state.items()}
        for state in (run.model.state_dict(), saved["model"])
    )
    if own != there:
        raise CheckpointError(
            f"Expected the checkpoint to be of this model, whose parameters are {own}, got one "
            f"with {there}. Make the model as it was when the run was started."
        )
    run.model.load_state_dict(saved["model"])
    for use, source in run.sources.items():
        if isinstance(source, SeededSource):
            if use not in saved["positions"]:
                raise CheckpointError(f"The checkpoint lacks the place in the {use} stream.")
            source.position = saved["positions"][use]

    def placed(value: Any) -> Any:
        return value.to(run.parameters.device) if isinstance(value, torch.Tensor) else value

    def part(name: str) -> dict[str, Any]:
        return {key: placed(value) for key, value in saved[name].items()}

    return TrainState(
        step=integer("step", saved["step"], least=0),
        releases=integer("releases", saved["releases"], least=0),
        prepared=saved["prepared"],
        finished=saved["finished"],
        preconditioner=part("preconditioner"),
        clip=part("clip") or first.clip,
        rule=part("rule"),
        controller=part("controller"),
        # which checkpoints of before noise could follow the releases do not have
        noise=part("noise") if "noise" in saved else first.noise,
        level=positive("level", saved.get("level", first.level)),
        fit_level_at=integer("fit_level_at", saved.get("fit_level_at", 0), least=0),
        stopping=part("stopping") if "stopping" in saved else {},
    )


def evaluations(saved: dict[str, Any]) -> list[Evaluation]:
    """Return the evaluations of a checkpoint; those of before there were any have none."""
    return [
        Evaluation(
            integer("step", each["step"], least=0),
            each["values"],
            each["baselines"],
            each["charged"],
        )
        for each in saved.get("evaluations", ())
    ]


def load(
    path: str | os.PathLike[str],
    kinds: Mapping[str, type],
    writer: str,
    upgraded: Callable[[dict[str, Any]], dict[str, Any]] = dict,
) -> dict[str, Any]:
    """Return a checkpoint's content, whose parts must be of the given kinds.

    `upgraded` turns content of format 1 into that of the present format.
    """
    name = str(path)
    content = _unpack(name, _bytes_of(path))
    if content.get("version") == 1:
        content = {**upgraded(content), "version": _VERSION}
    if content.get("version") != _VERSION:
        raise CheckpointError(
            f"Cannot read the checkpoint {name!r}: it has format {content.get('version')}, this "
            f"Privada reads format {_VERSION}. Upgrade Privada."
        )
    wrong = [key for key, kind in kinds.items() if not isinstance(content.get(key), kind)]
    if wrong:
        raise CheckpointError(
            f"Cannot read the checkpoint {name!r}: its parts {wrong} are missing or of another "
            f"kind. Use one that {writer} wrote."
        )
    return content


def _bytes_of(path: str | os.PathLike[str]) -> bytes:
    try:
        return Path(path).read_bytes()
    except FileNotFoundError as error:
        raise CheckpointError(
            f"Cannot read the checkpoint {str(path)!r}: there is no such file."
        ) from error
    except OSError as error:
        raise CheckpointError(
            f"Cannot read the checkpoint {str(path)!r}: {error.strerror}."
        ) from error


def _unpack(name: str, raw: bytes) -> dict[str, Any]:
    digest, packed = raw[len(_MARK) :][:32], raw[len(_MARK) + 32 :]
    if not raw.startswith(_MARK):
        raise CheckpointError(
            f"Cannot read the checkpoint {name!r}: it is not a Privada checkpoint, or its "
            "beginning is damaged."
        )
    if hashlib.sha256(packed).digest() != digest:
        raise CheckpointError(
            f"Cannot read the checkpoint {name!r}: it is damaged or cut short. Use an earlier "
            "one; the ledger still knows what was spent."
        )
    try:
        content = torch.load(io.BytesIO(packed), map_location="cpu", weights_only=True)
    except Exception as error:  # whatever torch raises for what it will not load
        raise CheckpointError(
            f"Cannot read the checkpoint {name!r}: it holds something other than plain values."
        ) from error
    if not isinstance(content, dict):
        raise CheckpointError(f"Cannot read the checkpoint {name!r}: it is not a Privada one.")
    return content
