"""What privacy costs: budgets, accountants, calibration, the ledger and the statement.

Nothing here needs torch.
"""

from privada.accounting.accountants import (
    ACCOUNTANTS,
    Accountant,
    LossDistributionAccountant,
    MomentsAccountant,
    RenyiAccountant,
    epsilon_of,
)
from privada.accounting.budget import Budget
from privada.accounting.calibration import batch_size, epsilon, noise_multiplier, steps
from privada.accounting.composition import advanced_composition, advanced_composition_sigma
from privada.accounting.filters import RenyiFilter
from privada.accounting.ledger import (
    Charge,
    Ledger,
    LedgerStorage,
    PostgresStorage,
    SQLiteStorage,
)
from privada.accounting.reservations import Reservation
from privada.accounting.statement import Statement

__all__ = [
    "ACCOUNTANTS",
    "Accountant",
    "Budget",
    "Charge",
    "Ledger",
    "LedgerStorage",
    "LossDistributionAccountant",
    "MomentsAccountant",
    "PostgresStorage",
    "RenyiAccountant",
    "RenyiFilter",
    "Reservation",
    "SQLiteStorage",
    "Statement",
    "advanced_composition",
    "advanced_composition_sigma",
    "batch_size",
    "epsilon",
    "epsilon_of",
    "noise_multiplier",
    "steps",
]
