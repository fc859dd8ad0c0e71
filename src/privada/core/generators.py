"""Random generators that belong to a data set: they cannot be hidden."""

import dis
import functools
import inspect
import random
import sys
from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

_KINDS = (
    torch.Generator,
    np.random.Generator,
    np.random.RandomState,
    np.random.BitGenerator,
    random.Random,
)
# What may be drawn from, since it is hidden, or has no state.
_ALLOWED = {id(random._inst), id(np.random.mtrand._rand), id(torch.default_generator)}
_STATELESS = (random.SystemRandom,)
# How many objects are looked at, and how many items of a list.
_OBJECTS, _ITEMS, _DEPTH = 2000, 32, 8
# Modules whose functions have no generators but the global ones.
_KNOWN = {*sys.stdlib_module_names, "torch", "numpy"}
_METHODS = ("__getitem__", "__call__", "forward")


def own_generator(owner: Any) -> str | None:
    """Return where an object keeps a random generator of its own, None if none is seen.

    An iterator, such as a generator function's or one of itertools, is as good as a random one: it
    gives what comes next to whoever comes next. It looks at attributes, of classes too, items of
    short lists and dictionaries, closures, and at the global variables, functions and callable
    objects that functions name, of modules too, as well as the methods that read an item and those
    that they call on `self`. What is not made yet, or lies in C, is not seen.

    Example:
        >>> import numpy as np
        >>> from functools import partial
        >>> from privada.core.generators import own_generator
        >>> own_generator(partial(print, np.random.default_rng(0)))
        'args'
    """
    seen: set[int] = set()
    waiting: list[tuple[str, Any, int]] = [("", owner, 0)]
    while waiting and len(seen) < _OBJECTS:
        path, value, depth = waiting.pop(0)
        if id(value) in seen:
            continue
        seen.add(id(value))
        if _is_iterator(value):
            return path or type(value).__name__
        if isinstance(value, _KINDS):
            if id(value) in _ALLOWED or isinstance(value, _STATELESS):
                continue
            return path or type(value).__name__
        if depth < _DEPTH:
            waiting += [
                (f"{path}.{name}".strip("."), each, depth + 1) for name, each in _inside(value)
            ]
    return None


def _is_iterator(value: Any) -> bool:
    """Return whether something is used up by those who ask; files, which can be read anew, not."""
    kind = type(value)
    return hasattr(kind, "__next__") and kind.__module__ in ("builtins", "itertools")


def _inside(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what an object holds, with names that are those of code and not of data."""
    if isinstance(value, (str, bytes, int, float, complex, np.ndarray, torch.Tensor, type)):
        return
    if isinstance(value, FunctionType):
        yield from ((name, each) for name, each in _of_function(value))
        return
    if isinstance(value, MethodType):
        yield from (("", value.__self__), ("", value.__func__))
        return
    if isinstance(value, functools.partial):
        yield "", value.func
        yield "args", value.args
        yield "keywords", value.keywords
        return
    if isinstance(value, Mapping):
        if type(value).__module__ in ("builtins", "collections"):
            yield from (("", each) for _, each in zip(range(_ITEMS), value.values(), strict=False))
        return
    if isinstance(value, (list, tuple, set, frozenset)):
        yield from (("", each) for _, each in zip(range(_ITEMS), value, strict=False))
        return
    if type(value).__module__ == "builtins":
        return
    held = getattr(value, "__dict__", None)
    if isinstance(held, dict):
        yield from held.items()
    for kind in type(value).__mro__[:-1]:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else tuple(slots):
            if hasattr(value, name):
                yield name, getattr(value, name)
        yield from (
            (name, each)
            for name, each in vars(kind).items()
            if not name.startswith("__") and not hasattr(each, "__get__")
        )
    yield from (("", each) for each in _methods(type(value)))


def _methods(kind: type) -> Iterator[FunctionType]:
    """Yield the methods that reading an item may run: some by their names, and what these call."""
    names, seen = list(_METHODS), set()
    while names:
        name = names.pop()
        if name in seen:
            continue
        seen.add(name)
        method = _plain(inspect.getattr_static(kind, name, None))
        if method is not None:
            yield method
            if str(method.__module__).partition(".")[0] != "torch":
                names += _of_self(method.__code__)


def _plain(method: Any) -> FunctionType | None:
    """Return the function of a method, of whatever kind."""
    for part in ("__func__", "fget", "func"):
        method = getattr(method, part, method)
    return method if isinstance(method, FunctionType) else None


def _of_self(code: CodeType) -> Iterator[str]:
    """Yield the names that a method asks its first argument for."""
    own, before = code.co_varnames[:1], None
    for each in dis.get_instructions(code):
        if each.opname in ("LOAD_ATTR", "LOAD_METHOD") and before in own:
            yield each.argval
        before = each.argval if each.opname.startswith("LOAD_FAST") else None


def _of_function(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield what a function finds in its closure, its defaults, and global names that it uses."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # nothing is in it yet
            continue
    yield from (("defaults", each) for each in function.__defaults__ or ())
    yield from (function.__kwdefaults__ or {}).items()
    names = dict.fromkeys(name for code in codes_of(function.__code__) for name in code.co_names)
    for name in names:
        value = function.__globals__.get(name)
        # what runs, and generators, not whatever else a script has
        if _matters(value):
            yield name, value
        elif isinstance(value, ModuleType) and value.__name__.partition(".")[0] not in _KNOWN:
            below = ((each, vars(value).get(each)) for each in names)
            yield from ((f"{name}.{each}", held) for each, held in below if _matters(held))


def _matters(value: Any) -> bool:
    return isinstance(value, (*_KINDS, FunctionType)) or _is_iterator(value) or _runs(value)


def _runs(value: Any) -> bool:
    """Return whether something is an object that can be called, by what is written in Python."""
    return callable(value) and isinstance(type(value).__call__, FunctionType)


def codes_of(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of a function, and of the functions within it."""
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from codes_of(each)
