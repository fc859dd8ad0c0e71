"""What a model and a loss hold beside their trained parameters, and whether it changes."""

import dis
import functools
import sys
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from types import FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from privada.core.errors import ModelError
from privada.core.generators import codes_of

Mark = tuple[int, int]

_MISSING = object()
_CONTAINERS = (list, dict, set, bytearray, deque)
# What torch keeps of its own in every module, beside what the module has: hooks and the like.
_OF_TORCH = set(nn.Module().__dict__) - {"_buffers", "_parameters", "_modules"}
_HOOKS = tuple(name for name in _OF_TORCH if name.endswith("_hooks"))
# How many objects within each other are looked at, and how many items of one container.
_DEPTH, _ITEMS = 8, 256
# What has no state of its own that is to be looked at.
_SIMPLE = (str, bytes, int, float, complex, np.generic, type, type(None), ModuleType)
_LIBRARIES = (set(sys.stdlib_module_names) - {"types"}) | {"numpy", "privada"}
# How many bytes are copied in all, to be put back, and up to which size values are compared. Other
# tensors are known by their versions and a sum of their bits, and are made unusable if they change.
_COPIED, _COMPARED = 1 << 26, 1 << 16


class HeldState:
    """Buffers, parameters and attributes of a model and of a loss, which records must not change.

    What is looked at: the buffers and parameters of their modules and the gradients of these;
    tensors, arrays, numbers and other values that are attributes of these modules, of their
    classes, of a loss that is an object, and of objects and containers among these, some levels
    deep; of their methods and hooks, and of a loss that is a function, what is in the closure, the
    attributes, the defaults and the global variables that they name or make, and those of functions
    of the same module that they call. Of what reads records (a data set, a transform, a collate)
    the same, but only numbers, small tensors and arrays, and lists that grow: what it caches in
    dictionaries and files is its own affair. Not looked at: what lies deeper, attributes of Python
    modules, objects of the standard library, and what is written in C.

    Example:
        >>> import torch
        >>> from privada.core.state import HeldState
        >>> state = HeldState(torch.nn.BatchNorm1d(2))
        >>> with state.watched():
        ...     state.changed()
        []
    """

    def __init__(self, *owners: Any, readers: tuple[Any, ...] = ()) -> None:
        self._owners, self._readers = owners, readers
        self._noted: _Noted | None = None

    def __getstate__(self) -> dict[str, Any]:
        # a copy's tensors have other versions
        return {"_owners": self._owners, "_readers": self._readers, "_noted": None}

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
            self._noted = _Noted(self._owners, self._readers)
        self._noted.begin()
        return self._noted

    def changed(self) -> list[str]:
        """Return the names of what has changed since the watch began."""
        return [] if self._noted is None else self._noted.changed()


class _Noted:
    """What was held at one time."""

    def __init__(self, owners: tuple[Any, ...], readers: tuple[Any, ...] = ()) -> None:
        # (name, namespace, its content then), (name, cell, its content then, whether a reader's)
        self._spaces: list[tuple[str, Any, Any]] = []
        self._cells: list[tuple[str, Any, Any, bool]] = []
        # (name, container of a reader, its content then, the figures in it then)
        self._caches: list[tuple[str, Any, Any, dict[Any, Any]]] = []
        # (name, tensor, its mark then if it has versions, a copy if there is one, its bits' sum)
        self._tensors: list[tuple[str, Tensor, Mark | None, Tensor | None, int | None]] = []
        self._trained: list[tuple[str, Tensor]] = []
        self._written: list[_Written] = []
        self._seen: set[int] = set()
        self._room = _COPIED
        # readers first: what a model names as well may still be a data set with its caches
        self._reading = True
        for reader in readers:
            self._visit("", reader)
        self._reading = False
        for owner in (*owners, *_global_hooks()):
            self._visit("", owner)
        self.begin()

    # ------------------------------------------------------------------ finding

    def _visit(self, name: str, value: Any, depth: int = 0) -> None:
        """Note what a value holds, whatever it is."""
        if isinstance(value, _SIMPLE):
            return
        if isinstance(value, Tensor):
            self._note_tensor(name, value)
        elif isinstance(value, np.ndarray):
            if value.dtype.kind in "biuf" and value.flags.writeable:
                with suppress(TypeError, ValueError):  # some types and strides torch does not have
                    self._note_tensor(name, torch.from_numpy(value), versions=False)
        elif id(value) not in self._seen and depth <= _DEPTH:
            self._seen.add(id(value))
            self._visit_inside(name, value, depth + 1)

    def _visit_inside(self, name: str, value: Any, depth: int) -> None:
        below = f"{name}." if name and not name.endswith(".") else name
        if isinstance(value, _CONTAINERS):
            self._note_container(name, value, depth)
        elif isinstance(value, (tuple, frozenset)):
            for each in islice(value, _ITEMS):
                self._visit(name, each, depth)
        elif isinstance(value, functools.partial):
            self._visit(name, value.func, depth)
            for each in (*value.args, *value.keywords.values()):
                self._visit(f"{below}argument", each, depth)
        elif isinstance(value, MethodType):
            self._visit(name, value.__self__, depth)
            self._visit(name, value.__func__, depth)
        elif isinstance(value, FunctionType):
            self._visit_function(below, value, depth)
        elif isinstance(value, nn.Module):
            modules = list(value.named_modules())
            self._seen.update(id(module) for _, module in modules)
            for path, module in modules:
                self._visit_object(f"{below}{path}.".lstrip("."), module, depth)
        elif _root(type(value)) not in _LIBRARIES or isinstance(value, Dataset):
            self._visit_object(below, value, depth)

    def _visit_function(self, name: str, function: FunctionType, depth: int) -> None:
        if _root(function) in ("torch", *_LIBRARIES):
            return
        self._note_space(name, function.__dict__, depth)
        for each, cell in _cells_of(function):
            self._note_cell(each, cell, depth)
        for each, held in _named_by(function):
            self._visit(f"{each}.", held, depth)
        for held in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self._visit(f"{name}default", held, depth)

    def _visit_object(self, name: str, owner: Any, depth: int) -> None:
        """Note the attributes of an object and of its class, its methods and its hooks."""
        skipped: tuple[str, ...] = ()
        if isinstance(owner, nn.Module):
            skipped = tuple(_OF_TORCH)
            for each in _HOOKS:
                for hook in owner.__dict__.get(each, {}).values():
                    self._visit(f"{name}hook.", hook, depth)
        if isinstance(held := getattr(owner, "__dict__", None), dict):
            self._note_space(name, held, depth, skipped)
        for kind in type(owner).__mro__:
            if _root(kind) in ("torch", *_LIBRARIES) and kind is not SimpleNamespace:
                continue
            for key in _slots_of(kind):
                self._note_cell(f"{name}{key}", _Attribute(owner, key), depth)
            if id(kind) not in self._seen:
                self._seen.add(id(kind))
                self._visit_class(name, kind, depth)

    def _visit_class(self, name: str, kind: type, depth: int) -> None:
        for key, value in list(vars(kind).items()):
            function = _function_of(value)
            if function is not None:
                self._visit(f"{name}{key}", function, depth)
            elif not key.startswith("__") and not hasattr(value, "__get__"):
                self._note_cell(f"{name}{key}", _Attribute(kind, key), depth)

    def _note_cell(self, name: str, cell: Any, depth: int) -> None:
        held = _content(cell)
        if not self._reading or held is None or _is_figure(held):
            self._cells.append((name, cell, held, self._reading))
        self._visit(name, held, depth)

    def _note_space(
        self, name: str, held: dict[str, Any], depth: int, skipped: tuple[str, ...] = ()
    ) -> None:
        """Note the attributes of one object."""
        if not self._reading:
            self._spaces.append((name, held, held.copy()))
        for key, value in list(held.items()):
            if key in skipped:
                continue
            if self._reading and (value is None or _is_figure(value)):
                self._cells.append((f"{name}{key}", _Global(held, key), value, True))
            below = key if key not in ("_buffers", "_parameters", "_modules") else ""
            self._visit(f"{name}{below}", value, depth)

    def _note_container(self, name: str, value: Any, depth: int) -> None:
        # as it is kept: a dictionary of another kind may make anew what it is asked for
        pairs = dict.items(value) if isinstance(value, dict) else enumerate(value)
        some = list(islice(pairs, _ITEMS))
        if not self._reading:
            self._spaces.append((name, value, _copied(value)))
        elif isinstance(value, dict) and not isinstance(value, Counter):
            figures = {key: each for key, each in some if _is_figure(each)}
            self._caches.append((name, value, None, figures))
        else:
            figures = {} if isinstance(value, set) else {k: v for k, v in some if _is_figure(v)}
            self._caches.append((name, value, _copied(value), figures))
        for key, each in some:
            self._visit(f"{name}{'' if not name or name.endswith('.') else '.'}{key}", each, depth)

    def _note_tensor(self, name: str, value: Tensor, versions: bool = True) -> None:
        if id(value) in self._seen:
            return
        self._seen.add(id(value))
        size = value.numel() * value.element_size()
        if self._reading and size > _COMPARED:  # the records themselves
            return
        if value.requires_grad and value.is_leaf:
            self._trained.append((name, value))
            if not self._reading and isinstance(value, nn.Parameter):
                self._spaces.append((f"{name}.", value.__dict__, value.__dict__.copy()))
            return
        kept = None
        if size <= self._room:
            self._room -= size
            with suppress(RuntimeError):  # one that a transform of torch has left behind
                kept = value.detach().clone()
        bits = _bits(value) if versions and size > _COMPARED else None
        self._tensors.append((name, value, _mark(value) if versions else None, kept, bits))

    # ------------------------------------------------------------------ comparing

    def begin(self) -> None:
        """Note the trained parameters, which releases move between one look and the next."""
        self._written = [_Written(value) for _, value in self._trained]

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
        names += [each[0] for each in self._cells if not _cell_as(*each[1:])]
        names += [each[0] for each in self._caches if not _cached_as(*each[1:])]
        names += [each[0] for each in self._tensors if not _as_noted(*each[1:])]
        return names

    def _quickly_same(self) -> bool:
        """Return whether all is as it was, as far as that is easily seen."""
        try:
            return (
                all(held == then for _, held, then in self._spaces)
                and all(_content(cell) is then for _, cell, then, _ in self._cells)
                and all(_cached_as(*each[1:]) for each in self._caches)
                and all(_as_noted(*each[1:]) for each in self._tensors)
            )
        except Exception:  # tensors and arrays that are not the same have no single answer
            return False

    def changed(self) -> list[str]:
        """Return the names of what is not as it was."""
        pairs = zip(self._trained, self._written, strict=True)
        return [*self.changed_state(), *(name for (name, _), each in pairs if each.changed())]

    @torch.no_grad()
    def put_back(self) -> None:
        """Make everything as it was; of what has changed and is not kept, nothing is left."""
        for _, held, then in self._spaces:
            if not _same(held, then):
                _refill(held, then)
        for _, cell, then, reading in self._cells:
            if _content(cell) is not then and not (reading and _cell_as(cell, then, reading)):
                cell.cell_contents = then
        for _, held, then, some in self._caches:
            if not _cached_as(held, then, some):
                _refill(held, held | some if then is None else then)
        for _, value, mark, kept, bits in self._tensors:
            if kept is not None:
                if value.shape != kept.shape or value.dtype != kept.dtype:
                    value.data = kept.clone()
                value.copy_(kept)
            elif not _as_noted(value, mark, kept, bits):
                _blank(value)
        for each in self._written:
            each.blank_if_changed()


def _blank(value: Tensor) -> None:
    value.fill_(float("nan") if value.is_floating_point() else 0)


def _mark(value: Tensor) -> Mark:
    try:
        with torch._C.DisableTorchFunctionSubclass():
            return value._version, value.data_ptr()
    except RuntimeError:  # sparse ones and the like have no one place
        return value._version, 0


def _bits(value: Tensor) -> int | None:
    """Return a sum of the bits of a large tensor, None if it has none that can be read."""
    try:
        flat = value.detach().reshape(-1).view(torch.uint8)
        whole = flat.numel() // 8 * 8
        if flat.storage_offset() % 8:
            flat = flat.clone()
        return int(flat[:whole].view(torch.int64).sum()) + int(flat[whole:].sum())
    except RuntimeError:
        return None


class _Written:
    """A trained parameter and its gradient at one time, which releases alone may write."""

    def __init__(self, value: Tensor) -> None:
        self._value, self._mark = value, _mark(value)
        small = value.numel() * value.element_size() <= _COMPARED
        self._kept = value.detach().clone() if small else None
        self._bits = None if small else _bits(value)
        self._gradient = value.grad
        self._gradient_mark = None if value.grad is None else _mark(value.grad)

    def changed(self) -> bool:
        return not self._same_value() or not self._same_gradient()

    def _same_value(self) -> bool:
        return _as_noted(self._value.detach(), self._mark, self._kept, self._bits)

    def _same_gradient(self) -> bool:
        now = self._value.grad
        return now is self._gradient and (now is None or _mark(now) == self._gradient_mark)

    def blank_if_changed(self) -> None:
        """Leave nothing of what was written, of which there may be no copy."""
        if not self._same_gradient():
            self._value.grad = None
        if not self._same_value():
            _blank(self._value)


class _Attribute:
    """An attribute of a class, or one in a slot, as if it were a cell of a closure."""

    def __init__(self, owner: Any, name: str) -> None:
        self._owner, self._name = owner, name

    @property
    def cell_contents(self) -> Any:
        """What the attribute holds."""
        return getattr(self._owner, self._name, None)

    @cell_contents.setter
    def cell_contents(self, value: Any) -> None:
        setattr(self._owner, self._name, value)


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


def _named_by(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the functions of its own module that a function names, and objects of all kinds."""
    for name in _global_names(function):
        held = function.__globals__.get(name)
        if not isinstance(held, FunctionType) or held.__globals__ is function.__globals__:
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


def _global_hooks() -> Iterator[Any]:
    """Yield the hooks that torch runs for every module."""
    for name, hooks in vars(torch.nn.modules.module).items():
        if name.startswith("_global_") and isinstance(hooks, dict):
            yield from hooks.values()


def _function_of(value: Any) -> FunctionType | None:
    """Return the function of a method, of whatever kind, None for anything else."""
    for part in ("__func__", "fget", "func"):
        value = getattr(value, part, value) if hasattr(value, "__get__") else value
    return value if isinstance(value, FunctionType) else None


def _slots_of(kind: type) -> tuple[str, ...]:
    slots = vars(kind).get("__slots__", ())
    named = (slots,) if isinstance(slots, str) else tuple(slots)
    return tuple(name for name in named if name not in ("__dict__", "__weakref__"))


def _root(named: Any) -> str:
    """Return the name of the package that a class or a function is from."""
    return str(getattr(named, "__module__", "")).partition(".")[0]


def _is_figure(value: Any) -> bool:
    """Return whether something is a number, a tensor or an array that is small."""
    if isinstance(value, Tensor):
        return value.numel() * value.element_size() <= _COMPARED
    if isinstance(value, np.ndarray):
        return value.nbytes <= _COMPARED and value.dtype.kind in "biufc"
    return isinstance(value, (int, float, complex, np.generic))


def _cell_as(cell: Any, then: Any, reading: bool) -> bool:
    """Return whether a variable holds what it held; a reader may open what it did not have."""
    now = _content(cell)
    opened = reading and then is None and not isinstance(now, (float, np.floating))
    return opened or _equal(now, then)


def _cached_as(held: Any, then: Any, figures: dict[Any, Any]) -> bool:
    """Return whether a reader's container has its figures still, and one of items its length.

    A dictionary may be a cache, which gains and loses entries; a list may have room for objects.
    """
    if then is None:
        kept = _copied(held)
        return all(_equal(kept.get(key, each), each) for key, each in figures.items())
    if len(held) != len(then):
        return False
    return all(_equal(held[key], each) for key, each in figures.items())


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
        kept = _copied(now)
        return all(key in kept and _equal(kept[key], value) for key, value in then.items())
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


def _as_noted(
    value: Tensor, mark: Mark | None, kept: Tensor | None, bits: int | None = None
) -> bool:
    """Return whether a tensor is as it was; one without versions is compared whatever its size."""
    if mark is None:
        return kept is None or _values_alike(value, kept)
    same = _mark(value) == mark and (kept is None or _alike(value, kept))
    return same and (bits is None or _bits(value) == bits)


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
        return {key: each for key, each in dict.items(held)}  # noqa: C416 - past its own methods
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
