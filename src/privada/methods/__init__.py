"""The named methods: each is one short file that combines parts."""

from privada.core.validation import one_of
from privada.methods.adadp import ADADP
from privada.methods.adadps import AdaDPS
from privada.methods.adp_sgd import ADPSGD
from privada.methods.dp2_rmsprop import DP2RMSProp
from privada.methods.dp_adagrad import DPAdaGrad
from privada.methods.dp_adam import DPAdam
from privada.methods.dp_adam_bc import DPAdamBC
from privada.methods.dp_adam_pub import DPAdamPub
from privada.methods.dp_adam_wosm import DPAdamWOSM
from privada.methods.dp_momentum import DPMomentum
from privada.methods.dp_r_pub import DPRPub
from privada.methods.dp_rmsprop import DPRMSProp
from privada.methods.dp_sgd import DPSGD
from privada.methods.method import Method, Parts
from privada.methods.pagan import PAGAN
from privada.methods.pasan import PASAN
from privada.methods.pda_dpmd import PDADPMD
from privada.methods.pdp_sgd import PDPSGD
from privada.methods.private_newton import PrivateNewton
from privada.methods.scale_then_privatise import ScaleThenPrivatise

_METHODS: dict[str, type[Method]] = {
    method.name: method
    for method in (
        DPSGD,
        DPMomentum,
        DPAdam,
        DPAdamWOSM,
        DPRMSProp,
        DPAdaGrad,
        AdaDPS,
        DPRPub,
        DPAdamPub,
        PDADPMD,
        PDPSGD,
        PASAN,
        PAGAN,
        ADADP,
        ADPSGD,
        DPAdamBC,
        ScaleThenPrivatise,
        DP2RMSProp,
        PrivateNewton,
    )
}

__all__ = [
    "ADADP",
    "ADPSGD",
    "DPSGD",
    "PAGAN",
    "PASAN",
    "PDADPMD",
    "PDPSGD",
    "AdaDPS",
    "DP2RMSProp",
    "DPAdaGrad",
    "DPAdam",
    "DPAdamBC",
    "DPAdamPub",
    "DPAdamWOSM",
    "DPMomentum",
    "DPRMSProp",
    "DPRPub",
    "Method",
    "Parts",
    "PrivateNewton",
    "ScaleThenPrivatise",
    "get",
    "names",
]


def names() -> tuple[str, ...]:
    """Return the names of all methods, as the command line takes them.

    Returns:
        The names, such as "dp-sgd".

    Example:
        >>> import privada as pv
        >>> "dp-sgd" in pv.methods.names()
        True
    """
    return tuple(_METHODS)


def get(name: str) -> type[Method]:
    """Return the class of a named method.

    Args:
        name: one of `names()`.

    Returns:
        A subclass of `Method`.

    Edge cases: an unknown name is an error that lists the known ones.

    Example:
        >>> import privada as pv
        >>> pv.methods.get("dp-sgd")
        <class 'privada.methods.dp_sgd.DPSGD'>
    """
    return _METHODS[one_of("method", name, _METHODS)]
