"""What a run has come to: one frozen value, which checkpoints hold."""

from dataclasses import dataclass, field

from privada.core.values import State


@dataclass(frozen=True)
class TrainState:
    """Everything that changes from step to step, beside the model's parameters.

    `step` and `releases` count what was done. `prepared` says whether the releases before the
    first step were made. The others are the states of the method's parts. `finished` says that no
    further step can be taken.

    Guarantee: all of it follows from releases and public values, so that it may be written to a
    file. Neither keys nor noise are in it.
    """

    step: int = 0
    releases: int = 0
    prepared: bool = False
    finished: bool = False
    preconditioner: State = field(default_factory=dict)
    clip: State = field(default_factory=dict)
    rule: State = field(default_factory=dict)
    controller: State = field(default_factory=dict)
