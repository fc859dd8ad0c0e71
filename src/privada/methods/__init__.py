"""The named methods: each a short file of parts put together."""

from privada.core.validation import one_of
from privada.methods.dp_adagrad import DPAdaGrad
from privada.methods.dp_adam import DPAdam
from privada.methods.dp_adam_wosm import DPAdamWOSM
from privada.methods.dp_momentum import DPMomentum
from privada.methods.dp_rmsprop import DPRMSProp
from privada.methods.dp_sgd import DPSGD
from privada.methods.method import Method, Parts

_METHODS: dict[str, type[Method]] = {
    method.name: method for method in (DPSGD, DPMomentum, DPAdam, DPAdamWOSM, DPRMSProp, DPAdaGrad)
}

__all__ = [
    "DPSGD",
    "DPAdaGrad",
    "DPAdam",
    "DPAdamWOSM",
    "DPMomentum",
    "DPRMSProp",
    "Method",
    "Parts",
    "get",
    "names",
]


def names() -> tuple[str, ...]:
    """Return the names of all methods, as the command line takes them.

    Example:
        >>> import privada as pv
        >>> "dp-sgd" in pv.methods.names()
        True
    """
    return tuple(_METHODS)


def get(name: str) -> type[Method]:
    """Return the class of a named method.

    Edge cases: an unknown name is an error that lists the known ones.

    Example:
        >>> import privada as pv
        >>> pv.methods.get("dp-sgd")
        <class 'privada.methods.dp_sgd.DPSGD'>
    """
    return _METHODS[one_of("method", name, _METHODS)]
