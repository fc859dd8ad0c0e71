"""The errors a user can meet: each says the name, the value, the requirement and the remedy."""


class PrivadaError(Exception):
    """Base of every error that Privada raises on purpose."""


class ArgumentError(PrivadaError, ValueError):
    """An argument has a value that cannot be used."""


class DataError(PrivadaError, ValueError):
    """The private data cannot be used as given."""


class ModelError(PrivadaError, ValueError):
    """The model cannot be trained privately as it is."""


class EventError(PrivadaError, ValueError):
    """An accountant was asked for the cost of something it cannot account for."""


class LedgerError(PrivadaError):
    """The ledger cannot be read or written; no release was made."""


class BudgetExceeded(LedgerError):
    """The charge would exceed the budget of the ledger or of the run; no data was read."""


class CheckpointError(PrivadaError):
    """A checkpoint cannot be read, or belongs to another run."""


class PrivateValueError(PrivadaError):
    """A value that was asked for is private and has not been released."""


class DistributedError(PrivadaError):
    """The ranks of one run cannot go on together; what was charged stays charged."""
