"""Models whose outputs are dictionaries, tuples and ModelOutput, in each engine."""

from collections import namedtuple

import pytest
import torch
from torch import nn

from privada.clipping import Batch, make_engine
from privada.clipping.calling import call, output_tensors
from privada.clipping.one_pass import OnePassEngine
from privada.clipping.probes import refuse_mixing_models
from privada.core.errors import ModelError
from privada.core.tensors import Parameters
from privada.preconditioning import FlatScaling
from tests.oracles.examples import clipped_sum

transformers = pytest.importorskip("transformers")
Both = namedtuple("Both", ["scores", "states"])


class Nested(nn.Module):
    """Gives scores and states in one of several nestings."""

    def __init__(self, nest):
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)
        self.nest = nest

    def forward(self, x):
        states = torch.tanh(self.first(x))
        return self.nest(self.last(states), states)


NESTINGS = {
    "dictionary": (lambda s, h: {"scores": s, "states": h}, lambda o: (o["scores"], o["states"])),
    "tuple": (lambda s, h: (s, [h]), lambda o: (o[0], o[1][0])),
    "named tuple": (Both, lambda o: (o.scores, o.states)),
    "tuple with a cache": (lambda s, h: (s, h, object(), None), lambda o: o),
    "dictionary with a cache": (
        lambda s, h: {"cache": object(), "scores": s, "none": None, "states": h},
        lambda o: (o["scores"], o["states"]),
    ),
    "ModelOutput": (
        lambda s, h: transformers.modeling_outputs.SequenceClassifierOutput(
            logits=s, hidden_states=(h,)
        ),
        lambda o: (o.logits, o.hidden_states[0]),
    ),
}


def batch(size=5):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(size, 4, generator=generator, dtype=torch.float64)
    return Batch(inputs, torch.arange(size) % 3)


@pytest.mark.parametrize("how", ["auto", "vmap", "loop"])
@pytest.mark.parametrize("nesting", NESTINGS)
def test_the_clipped_sum_equals_the_loop_over_examples(nesting, how):
    nest, parts = NESTINGS[nesting]
    torch.manual_seed(0)
    model = Nested(nest).double()

    def loss(output, target):
        scores, states = parts(output)
        return nn.functional.cross_entropy(scores, target) + states.square().mean()

    class Plain(nn.Module):
        def forward(self, x):
            return torch.cat(output_tensors(call(self.inner, x)), dim=1)

    def plain_loss(output, target):
        return nn.functional.cross_entropy(output[:, :3], target) + output[:, 3:].square().mean()

    examples, parameters = batch(), Parameters(model)
    engine = make_engine(how, model, loss, parameters, next(examples.chunks(3)))
    assert isinstance(engine, OnePassEngine) == (how == "auto")
    plain = Plain()
    plain.inner = model
    for clip in (0.1, 100.0):
        found = engine.clipped_sum(examples, FlatScaling(None, None), clip).value
        expected = clipped_sum(plain, plain_loss, examples.inputs, examples.targets, clip)
        torch.testing.assert_close(found, expected.to(found))


def test_an_output_in_which_examples_meet_is_refused_wherever_it_is():
    meeting = Nested(lambda s, h: {"scores": s, "states": h - h.mean(dim=0)})
    with pytest.raises(ModelError, match="neighbours"):
        refuse_mixing_models(meeting.double(), batch(3))


@pytest.mark.parametrize(
    "nest",
    [
        lambda s, h: {"loss": s.mean(), "scores": s},
        lambda s, h: (None, s),
        lambda s, h: None,
        lambda s, h: {"states": h[:1], "scores": s},
    ],
    ids=["a loss over the batch", "nothing before a tensor", "nothing", "a part of the batch"],
)
def test_an_output_that_does_not_belong_to_examples_is_refused(nest):
    with pytest.raises(ModelError, match="first dimension is the batch"):
        refuse_mixing_models(Nested(nest).double(), batch(3))


def test_what_holds_no_tensor_is_left_out():
    def model(x):
        return {"a": x, "b": None, "c": {"d": x, "e": "text"}}

    found = call(model, torch.ones(2))
    assert list(found) == ["a"]  # a part with something else in it is none of tensors
