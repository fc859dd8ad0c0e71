"""One step by JAX-Privacy, of the same models with the same weights, written as JAX functions.

`python -m benchmarks.jax_peer <case>` takes a step for each line that it reads, and answers it.
"""

import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax_privacy import clipped_grad, noise_addition
from torch import nn

from benchmarks.models import CASES, Case, Encoder, Recurrent

Apply = Callable[[Any, Any], Any]


def _array(tensor: Any) -> Any:
    return jnp.asarray(tensor.detach().numpy())


def _linear(layer: nn.Linear) -> tuple[Any, Apply]:
    weights = {"w": _array(layer.weight), "b": _array(layer.bias)}
    return weights, lambda p, x: x @ p["w"].T + p["b"]


def _convolution(layer: nn.Conv2d) -> tuple[Any, Apply]:
    weights = {"w": _array(layer.weight), "b": _array(layer.bias)}

    def apply(p: Any, x: Any) -> Any:
        out = jax.lax.conv_general_dilated(
            x, p["w"], (1, 1), "VALID", dimension_numbers=("NCHW", "OIHW", "NCHW")
        )
        return out + p["b"][:, None, None]

    return weights, apply


def _pool(p: Any, x: Any) -> Any:
    window = (1, 1, 2, 2)
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, window, "VALID")


def _translate(layer: nn.Module) -> tuple[Any, Apply]:
    if isinstance(layer, nn.Sequential):
        pairs = [_translate(inner) for inner in layer]

        def apply(p: Any, x: Any) -> Any:
            for weights, (_, inner) in zip(p, pairs, strict=True):
                x = inner(weights, x)
            return x

        return [weights for weights, _ in pairs], apply
    if isinstance(layer, nn.Linear):
        return _linear(layer)
    if isinstance(layer, nn.Conv2d):
        return _convolution(layer)
    plain: dict[type, Apply] = {
        nn.ReLU: lambda p, x: jax.nn.relu(x),
        nn.Flatten: lambda p, x: x.reshape(len(x), -1),
        nn.MaxPool2d: _pool,
    }
    return {}, plain[type(layer)]


def _lstm(layer: nn.LSTM) -> tuple[Any, Apply]:
    layers = [
        {
            "i": _array(getattr(layer, f"weight_ih_l{k}")),
            "h": _array(getattr(layer, f"weight_hh_l{k}")),
            "b": _array(getattr(layer, f"bias_ih_l{k}")),
            "c": _array(getattr(layer, f"bias_hh_l{k}")),
        }
        for k in range(layer.num_layers)
    ]

    def apply(p: Any, x: Any) -> Any:
        for weights in p:
            gates = jnp.swapaxes(x @ weights["i"].T + weights["b"] + weights["c"], 0, 1)
            zero = jnp.zeros((x.shape[0], weights["h"].shape[1]))

            def step(carry: Any, now: Any, weights: Any = weights) -> Any:
                h, c = carry
                i, f, g, o = jnp.split(now + h @ weights["h"].T, 4, axis=-1)
                c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
                h = jax.nn.sigmoid(o) * jnp.tanh(c)
                return (h, c), h

            _, states = jax.lax.scan(step, (zero, zero), gates)
            x = jnp.swapaxes(states, 0, 1)
        return x

    return layers, apply


def _recurrent(model: Recurrent) -> tuple[Any, Apply]:
    lstm, run = _lstm(model.lstm)
    out, last = _linear(model.out)
    weights = {"table": _array(model.embedding.weight), "lstm": lstm, "out": out}

    def apply(p: Any, tokens: Any) -> Any:
        states = run(p["lstm"], p["table"][tokens])
        if model.every:
            return jnp.swapaxes(last(p["out"], states), 1, 2)
        return last(p["out"], states[:, -1])

    return weights, apply


def step(case: Case, clip: float, noise: float, rate: float) -> Callable[[], object]:
    """Return one step of clipped gradients, noise and SGD, compiled."""
    model, (inputs, targets) = case.model(), case.batch()
    if isinstance(model, Encoder):
        raise NotImplementedError("no translation of the transformer")
    weights, apply = _recurrent(model) if isinstance(model, Recurrent) else _translate(model)
    squared = isinstance(case.loss, nn.MSELoss)

    def loss(p: Any, x: Any, y: Any) -> Any:
        out = apply(p, x)
        if squared:
            return jnp.mean((out - y) ** 2)
        logs = jax.nn.log_softmax(out, axis=1)
        return -jnp.mean(jnp.take_along_axis(logs, jnp.expand_dims(y, 1), axis=1))

    gradient = clipped_grad(loss, l2_clip_norm=clip, batch_argnums=(1, 2), nan_safe=True)
    privatizer = noise_addition.gaussian_privatizer(stddev=noise * clip, prng_key=0)
    size = len(targets)

    @jax.jit
    def update(p: Any, state: Any, x: Any, y: Any) -> Any:
        noisy, state = privatizer.update(gradient(p, x, y), state, p)
        return optax.apply_updates(p, jax.tree.map(lambda g: -rate / size * g, noisy)), state

    x, y = jnp.asarray(inputs.numpy()), jnp.asarray(targets.numpy())
    held = [weights, privatizer.init(weights)]

    def one() -> None:
        held[0], held[1] = update(held[0], held[1], x, y)
        jax.block_until_ready(held[0])

    return one


def main() -> None:
    """Take one step for each line of input."""
    from benchmarks.contenders import CLIP, NOISE, RATE

    one = step(next(case for case in CASES if case.name == sys.argv[1]), CLIP, NOISE, RATE)
    for _ in sys.stdin:
        one()
        print(flush=True)


if __name__ == "__main__":
    main()
