"""What a model and a loss hold beside their trained parameters, and whether it changes."""

import dis
import functools
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from privada.core.errors import ModelError
from privada.core.generators import codes_of

Mark = tuple[int, int]

_MISSING = object()
_CONTAINERS = (list, dict, set, bytearray, deque)
# What torch keeps of its own in every module, beside what the module has: hooks and the like.
_OF_TORCH = set(nn.Module().__dict__) - {"_buffers", "_parameters", "_modules"}
# How many data sets within each other are looked at.
_DEPTH = 4
# How many bytes are copied in all, to be put back, and up to which size values are compared. Other
# tensors are known by their versions, and are made unusable if they change.
_COPIED, _COMPARED = 1 << 26, 1 << 16


class HeldState:
    """Buffers, parameters and attributes of a model and of a loss, which records must not change.

    What is looked at: the buffers and parameters of their modules; tensors, numbers and other
    values that are attributes of these modules or of a loss that is an object; what a loss that is
    a function holds in its closure, its attributes, its defaults and the global variables that it
    names or makes, and those of functions of its own module that it calls; the content of lists,
    dictionaries and sets among these. Of a data set, the numbers and small tensors that are its
    attributes, as a running maximum or a counter is: what it caches is its own affair. Not looked
    at: what lies deeper, and global variables that a model uses. Not noticed: writes past torch's
    versions, as through `.data`, to trained parameters and to tensors of more than 64 KiB, and any
    to arrays that are not copied, beyond 64 MiB in all.

    Example:
        >>> import torch
        >>> from privada.core.state import HeldState
        >>> state = HeldState(torch.nn.BatchNorm1d(2))
        >>> with state.watched():
        ...     state.changed()
        []
    """

    def __init__(self, *owners: Any, dataset: Any = None) -> None:
        self._owners, self._dataset = owners, dataset
        self._noted: _Noted | None = None

    def __getstate__(self) -> dict[str, Any]:
        # a copy's tensors have other versions
        return {"_owners": self._owners, "_dataset": self._dataset, "_noted": None}

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Put everything back that changes meanwhile; `changed` can be asked before the end."""
        noted = self._begin()
        try:
            yield
        finally:
            if noted.changed():
                noted.put_back()

    @contextmanager
    def untouched(self) -> Iterator[None]:
        """Put everything back that changes meanwhile, and raise if something did.

        Raises:
            ModelError: in words that say nothing of the records that changed it.
        """
        noted = self._begin()
        try:
            yield
        except BaseException:
            if noted.changed():
                noted.put_back()
            raise
        if noted.changed():
            noted.put_back()
            raise ModelError(
                "Expected a model and a loss, and a data set, a transform and a collate, that keep "
                "nothing of the data from record to record, but one of their buffers, parameters "
                "or attributes changed while they ran on records, as a running maximum does. It "
                "was put back, a parameter was overwritten, and nothing was released; what was "
                "charged stays charged. Remove what keeps state, such as observers, counters and "
                "caches."
            )

    def _begin(self) -> "_Noted":
        if self._noted is None or self._noted.changed_state():
            self._noted = _Noted(self._owners, self._dataset)
        self._noted.begin()
        return self._noted

    def changed(self) -> list[str]:
        """Return the names of what has changed since the watch began."""
        return [] if self._noted is None else self._noted.changed()


class _Noted:
    """What was held at one time."""

    def __init__(self, owners: tuple[Any, ...], dataset: Any = None) -> None:
        # (name, namespace, its content then), (name, cell, its content then)
        self._spaces: list[tuple[str, Any, Any]] = []
        self._cells: list[tuple[str, Any, Any]] = []
        # (name, tensor, its mark then if it has versions, a copy if there is one)
        self._tensors: list[tuple[str, Tensor, Mark | None, Tensor | None]] = []
        self._trained: list[tuple[str, Tensor]] = []
        self._marks: list[Mark] = []
        self._seen: set[int] = set()
        self._room = _COPIED
        for owner in owners:
            self._look_at(owner, "")
        self._look_at_figures(dataset)
        self.begin()

    # ------------------------------------------------------------------ finding

    def _look_at(self, owner: Any, name: str) -> None:
        if id(owner) in self._seen:
            return
        self._seen.add(id(owner))
        if isinstance(owner, nn.Module):
            for path, module in owner.named_modules():
                self._look_in(module, f"{name}{path}.".lstrip("."))
        elif isinstance(owner, functools.partial):
            self._look_at(owner.func, name)
            for each in (*owner.args, *owner.keywords.values()):
                self._look_at_value(f"{name}argument", each)
                self._look_at(each, name)
        elif isinstance(owner, MethodType):
            if callable(owner.__self__) or isinstance(owner.__self__, type):
                self._look_at(owner.__self__, name)
            else:
                self._look_in(owner.__self__, name)
            self._look_at(owner.__func__, name)
        elif isinstance(owner, FunctionType):
            self._look_in(owner, name)
            for each, cell in _cells_of(owner):
                held = _content(cell)
                self._cells.append((each, cell, held))
                self._look_at_value(each, held)
                if callable(held) and not isinstance(cell, _Global):
                    self._look_at(held, f"{each}.")
            for each, helper in _helpers_of(owner):
                self._look_at(helper, f"{each}.")
            for held in (*(owner.__defaults__ or ()), *(owner.__kwdefaults__ or {}).values()):
                self._look_at_value(f"{name}default", held)
        elif callable(owner) and not isinstance(owner, type):
            self._look_in(owner, name)
            if isinstance(call := type(owner).__call__, FunctionType):
                self._look_at(call, name)

    def _look_at_figures(self, dataset: Any, depth: int = 0) -> None:
        """Note the numbers and small tensors of a data set, and of those that it is made of."""
        space = getattr(dataset, "__dict__", None)
        if not isinstance(space, dict) or id(dataset) in self._seen or depth > _DEPTH:
            return
        self._seen.add(id(dataset))
        for name, held in space.items():
            small = isinstance(held, Tensor) and held.numel() * held.element_size() <= _COMPARED
            if small or (isinstance(held, np.ndarray) and held.nbytes <= _COMPARED):
                self._look_at_value(name, held)
            if small or isinstance(held, (int, float)):
                self._cells.append((name, _Global(space, name), held))
            elif hasattr(held, "__getitem__") and hasattr(held, "__len__"):
                self._look_at_figures(held, depth + 1)

    def _look_in(self, owner: Any, name: str) -> None:
        """Note the attributes of one object."""
        held = getattr(owner, "__dict__", None)
        if not isinstance(held, dict):
            return
        self._spaces.append((name, held, held.copy()))
        skipped = _OF_TORCH if isinstance(owner, nn.Module) else ()
        for key, value in held.items():
            if key not in skipped:
                self._look_at_value(f"{name}{key}", value)
                if callable(value) and not isinstance(owner, nn.Module):
                    self._look_at(value, f"{name}{key}.")

    def _look_at_value(self, name: str, value: Any) -> None:
        if isinstance(value, Tensor):
            self._note_tensor(name, value)
        elif isinstance(value, np.ndarray) and value.dtype.kind in "biuf" and value.flags.writeable:
            with suppress(TypeError, ValueError):  # some types and strides torch does not have
                self._note_tensor(name, torch.from_numpy(value), versions=False)
        elif isinstance(value, _CONTAINERS) and id(value) not in self._seen:
            self._seen.add(id(value))
            self._spaces.append((name, value, _copied(value)))
            below = name.removesuffix("_buffers").removesuffix("_parameters")
            for key, each in value.items() if isinstance(value, dict) else enumerate(value):
                if isinstance(each, Tensor):
                    self._note_tensor(f"{below}{key}", each)

    def _note_tensor(self, name: str, value: Tensor, versions: bool = True) -> None:
        if id(value) in self._seen:
            return
        self._seen.add(id(value))
        if value.requires_grad and value.is_leaf:
            self._trained.append((name, value))
            return
        kept, size = None, value.numel() * value.element_size()
        if size <= self._room:
            self._room -= size
            with suppress(RuntimeError):  # one that a transform of torch has left behind
                kept = value.detach().clone()
        self._tensors.append((name, value, _mark(value) if versions else None, kept))

    # ------------------------------------------------------------------ comparing

    def begin(self) -> None:
        """Note the trained parameters, which releases move between one look and the next."""
        self._marks = [_mark(value) for _, value in self._trained]

    def changed_state(self) -> list[str]:
        """Return the names of what is not as it was, apart from trained parameters."""
        if self._quickly_same():
            return []
        names = [
            each
            for name, held, then in self._spaces
            if not _same(held, then)
            for each in _changed_names(name, held, then)
        ]
        names += [name for name, cell, then in self._cells if not _equal(_content(cell), then)]
        names += [
            name for name, value, mark, kept in self._tensors if not _as_noted(value, mark, kept)
        ]
        return names

    def _quickly_same(self) -> bool:
        """Return whether all is as it was, as far as that is easily seen."""
        try:
            return (
                all(held == then for _, held, then in self._spaces)
                and all(_content(cell) is then for _, cell, then in self._cells)
                and all(_as_noted(value, mark, kept) for _, value, mark, kept in self._tensors)
            )
        except Exception:  # tensors and arrays that are not the same have no single answer
            return False

    def changed(self) -> list[str]:
        """Return the names of what is not as it was."""
        pairs = zip(self._trained, self._marks, strict=True)
        written = [name for (name, value), mark in pairs if _mark(value) != mark]
        return [*self.changed_state(), *written]

    @torch.no_grad()
    def put_back(self) -> None:
        """Make everything as it was; of what has changed and is not kept, nothing is left."""
        for _, held, then in self._spaces:
            if not _same(held, then):
                _refill(held, then)
        for _, cell, then in self._cells:
            if _content(cell) is not then:
                cell.cell_contents = then
        for _, value, mark, kept in self._tensors:
            if kept is not None:
                if value.shape != kept.shape or value.dtype != kept.dtype:
                    value.data = kept.clone()
                value.copy_(kept)
            elif mark not in (None, _mark(value)):
                _blank(value)
        for (_, value), mark in zip(self._trained, self._marks, strict=True):
            if _mark(value) != mark:
                _blank(value)


def _blank(value: Tensor) -> None:
    value.fill_(float("nan") if value.is_floating_point() else 0)


def _mark(value: Tensor) -> Mark:
    try:
        return value._version, value.data_ptr()
    except RuntimeError:  # sparse ones and the like have no one place
        return value._version, 0


class _Global:
    """A global variable that a function uses, as if it were a cell of its closure."""

    def __init__(self, space: dict[str, Any], name: str) -> None:
        self._space, self._name = space, name

    @property
    def cell_contents(self) -> Any:
        """What the variable holds."""
        return self._space.get(self._name, _MISSING)

    @cell_contents.setter
    def cell_contents(self, value: Any) -> None:
        if value is _MISSING:
            self._space.pop(self._name, None)
        else:
            self._space[self._name] = value


def _cells_of(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the cells of a closure, and the global tensors, numbers and containers that it uses.

    And those that it writes, whatever they hold, also if they are not there yet.
    """
    names = function.__code__.co_freevars
    yield from zip(names, function.__closure__ or (), strict=True)
    written = _written_globals(function)
    for name in _global_names(function):
        held = function.__globals__.get(name)
        if name in written or isinstance(held, (Tensor, np.ndarray, int, float, *_CONTAINERS)):
            yield name, _Global(function.__globals__, name)


def _helpers_of(function: FunctionType) -> Iterator[tuple[str, FunctionType]]:
    """Yield the functions of its own module that a function names."""
    for name in _global_names(function):
        held = function.__globals__.get(name)
        if isinstance(held, FunctionType) and held.__globals__ is function.__globals__:
            yield name, held


def _global_names(function: FunctionType) -> list[str]:
    """Return the names that may be those of global variables, each once."""
    return list(
        dict.fromkeys(name for code in codes_of(function.__code__) for name in code.co_names)
    )


def _written_globals(function: FunctionType) -> set[str]:
    return {
        each.argval
        for code in codes_of(function.__code__)
        for each in dis.get_instructions(code)
        if each.opname in ("STORE_GLOBAL", "DELETE_GLOBAL")
    }


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # nothing is in it yet
        return None


def _same(now: Any, then: Any) -> bool:
    """Return whether two containers hold the same objects, or equal ones."""
    if len(now) != len(then):
        return False
    try:
        return bool(now == then)
    except Exception:  # tensors and arrays that are not the same have no single answer
        pass
    if isinstance(now, dict):
        return all(key in now and _equal(now[key], value) for key, value in then.items())
    return all(_equal(one, other) for one, other in zip(now, then, strict=True))


def _changed_names(name: str, now: Any, then: Any) -> list[str]:
    """Return the names of the attributes that differ, or that of the container."""
    if name and not name.endswith("."):
        return [name]
    names = dict.fromkeys((*then, *now))
    missing = object()
    differ = [key for key in names if not _equal(now.get(key, missing), then.get(key, missing))]
    return [f"{name}{key}" for key in differ]


def _equal(now: Any, then: Any) -> bool:
    if now is then:
        return True
    try:
        if isinstance(now, Tensor) and isinstance(then, Tensor):
            return _values_alike(now, then)
        return bool(now == then)
    except Exception:  # whatever cannot be compared is not the same
        return False


def _as_noted(value: Tensor, mark: Mark | None, kept: Tensor | None) -> bool:
    """Return whether a tensor is as it was; one without versions is compared whatever its size."""
    if mark is None:
        return kept is None or _values_alike(value, kept)
    return _mark(value) == mark and (kept is None or _alike(value, kept))


def _alike(value: Tensor, kept: Tensor) -> bool:
    """Return whether a tensor is as its copy; a large one, whether it has its shape and type."""
    if kept.numel() * kept.element_size() > _COMPARED:
        return value.shape == kept.shape and value.dtype == kept.dtype
    return _values_alike(value, kept)


def _values_alike(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype or one.device != other.device:
        return False
    if torch.equal(one, other):
        return True
    return bool(((one == other) | ((one != one) & (other != other))).all())


def _copied(held: Any) -> Any:
    """Return a container of the same content, of a type whose copy means that."""
    if isinstance(held, dict):
        return dict(held)
    kind = next(kind for kind in _CONTAINERS if isinstance(held, kind))
    return kind(held)


def _refill(held: Any, then: Any) -> None:
    """Make a container hold what it held."""
    if isinstance(held, list | bytearray):
        held[:] = then
        return
    held.clear()
    if isinstance(held, deque):
        held.extend(then)
    else:
        held.update(then)
