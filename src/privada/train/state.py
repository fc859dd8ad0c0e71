"""What a run has come to: one frozen value, which checkpoints hold."""

from dataclasses import dataclass, field

from privada.core.values import State


@dataclass(frozen=True)
class TrainState:
    """Everything that changes from step to step, beside the model's parameters.

    `step` and `releases` count what was done. `prepared` says whether the releases before the
    first step were made. `finished` says that no further step can be taken. `level` is the noise
    multiplier where the factor of a schedule that follows the releases is 1, and `fit_level_at` the
    release before which it is fitted to the budget again; without such a schedule they mean
    nothing. `stopping` is what early stopping knows of its scores. The others are the states of
    the method's parts.

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
    noise: State = field(default_factory=dict)
    level: float = 0.0
    fit_level_at: int = 0
    stopping: State = field(default_factory=dict)

    @property
    def ended(self) -> bool:
        """Whether early stopping asks for an end."""
        return bool(self.stopping.get("ended"))
