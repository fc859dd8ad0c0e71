"""dp_accounting without what a command does not use.

Importing dp_accounting imports all its accountants, and with them SciPy's statistics, which takes
most of the time of a short command. The library asks it for the descriptions of events, as a rule.
So the command line, whose process is its own, imports those alone, and the rest when it is asked
for. `import privada` in a program of the user's changes nothing of the kind.
"""

import sys
import threading
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any

_PACKAGE, _EVENTS = "dp_accounting", "dp_accounting.dp_event"
_lock = threading.RLock()


class _Deferred(ModuleType):
    """A package whose own code runs when a name is asked for that its events do not have."""

    _running = False

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__all__":  # what the import system asks every module
            raise AttributeError(name)
        found = vars(import_module(_EVENTS)).get(name)
        if isinstance(found, type) and found.__module__ == _EVENTS:
            return found
        if find_spec(f"{_PACKAGE}.{name}") is not None:
            return import_module(f"{_PACKAGE}.{name}")
        with _lock:
            if self._running or type(self) is ModuleType:
                return object.__getattribute__(self, name)
            self._running = True
            try:
                assert self.__spec__ is not None
                assert self.__spec__.loader is not None
                self.__spec__.loader.exec_module(self)
                self.__class__ = ModuleType  # type: ignore[assignment]
            finally:
                self._running = False
            return getattr(self, name)


def defer_accountants() -> None:
    """Let `import dp_accounting` load its events alone; what else it has is loaded when used."""
    if _PACKAGE in sys.modules:
        return
    spec = find_spec(_PACKAGE)
    if spec is not None and spec.loader is not None:
        package = module_from_spec(spec)
        package.__class__ = _Deferred
        sys.modules[_PACKAGE] = package
