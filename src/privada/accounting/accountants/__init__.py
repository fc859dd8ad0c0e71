"""Accountants: each says what a tally of events costs, as an upper bound.

One file for each: `loss_distributions`, `renyi` and `moments`. `costs` checks what is asked and
asks them. To add one, write such a file; register it here to give it a name.
"""

from privada.accounting.accountants.accountant import Accountant
from privada.accounting.accountants.costs import accountant_of, epsilon_of, register, times
from privada.accounting.accountants.loss_distributions import LossDistributionAccountant
from privada.accounting.accountants.moments import MomentsAccountant
from privada.accounting.accountants.renyi import RenyiAccountant

_KNOWN = (LossDistributionAccountant(), RenyiAccountant(), MomentsAccountant())
for _each in _KNOWN:
    register(_each)

ACCOUNTANTS = tuple(each.name for each in _KNOWN)
IN_WORDS = {each.name: each.description for each in _KNOWN}

__all__ = [
    "ACCOUNTANTS",
    "IN_WORDS",
    "Accountant",
    "LossDistributionAccountant",
    "MomentsAccountant",
    "RenyiAccountant",
    "accountant_of",
    "epsilon_of",
    "register",
    "times",
]
