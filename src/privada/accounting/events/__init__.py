"""What ran, in dp_accounting's own classes, and as text that a ledger can keep.

A multiplier is always the noise's standard deviation over the clip norm, that is, over the most
by which adding or removing one record moves the sum. Replacing a record moves it by twice that;
accountants, not events, know.

One file for each kind of event says everything about it. To add one, write such a file and
register it here.
"""

from privada.accounting.events.failure import Failure, FailureKind
from privada.accounting.events.fixed_size import FixedSize, fixed_size
from privada.accounting.events.gaussian import Gaussian, gaussian
from privada.accounting.events.kind import (
    ADD_OR_REMOVE,
    EITHER,
    REPLACE,
    EventKind,
    GaussianRelease,
    Items,
    Tally,
)
from privada.accounting.events.parallel import Parallel, ParallelKind
from privada.accounting.events.poisson import Poisson, poisson
from privada.accounting.events.registry import (
    as_fields,
    common_relation,
    compose,
    decode,
    describe,
    divergence,
    encode,
    items_of,
    kind_of,
    largest_divergence,
    multiplier,
    register,
    relation,
    release_count,
    release_of,
    sampling_rate,
    tally,
    total_divergence,
)
from privada.accounting.events.selected import Selected, SelectedKind

for _kind in (Gaussian(), Poisson(), FixedSize(), ParallelKind(), SelectedKind(), FailureKind()):
    register(_kind)

__all__ = [
    "ADD_OR_REMOVE",
    "EITHER",
    "REPLACE",
    "EventKind",
    "Failure",
    "GaussianRelease",
    "Items",
    "Parallel",
    "Selected",
    "Tally",
    "as_fields",
    "common_relation",
    "compose",
    "decode",
    "describe",
    "divergence",
    "encode",
    "fixed_size",
    "gaussian",
    "items_of",
    "kind_of",
    "largest_divergence",
    "multiplier",
    "poisson",
    "register",
    "relation",
    "release_count",
    "release_of",
    "sampling_rate",
    "tally",
    "total_divergence",
]
