"""How the gradients of single examples are read off each kind of operation."""

from typing import Any

from privada.clipping.recording import Rule
from privada.clipping.rules import (
    attention,
    convolution,
    elementwise,
    linear,
    normalisation,
    recurrent,
    tables,
)

RULES: dict[Any, Rule] = {
    **linear.RULES,
    **convolution.RULES,
    **tables.RULES,
    **normalisation.RULES,
    **recurrent.RULES,
    **attention.RULES,
    **elementwise.RULES,
}
