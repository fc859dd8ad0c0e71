"""LSTM, GRU and plain recurrent layers: linear layers over time, by scans of our own.

torch's recurrent kernels do not tell the gradients of their gates. The scans here run over time in
place, everything that does not depend on the previous step is done for all steps at once, and the
backward pass hands out the gates' gradients, of which those of the weights are products.
"""

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

from privada.clipping.recording import ParameterUse, Recorder, Rule, whole_precision
from privada.clipping.rules.linear import build_linear


class CellWeights(NamedTuple):
    """The two matrices and the two offsets of a layer in one direction."""

    of_input: Tensor
    of_state: Tensor
    input_bias: Tensor | None
    state_bias: Tensor | None


def _added(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    return second if first is None else first if second is None else first + second


class Cell(Protocol):
    """One layer in one direction. Tensors over time have shape (time, batch, ...)."""

    def forward(
        self, values: Tensor, weights: CellWeights, state: Tensor, memory: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the states and the memories, the first ones included."""

    def backward(
        self, states: Tensor | None, memories: Tensor | None, several: bool
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return gradients: of the inputs, of the recurrent products, of the first two."""


class Lstm:
    """c = f c' + i g, h = o tanh(c), with i, f, o = sigmoid and g = tanh of the gates.

    tanh(x) is taken as 2 sigmoid(2x) - 1: one sigmoid then serves all four gates.
    """

    def forward(
        self,
        values: Tensor,
        weights: CellWeights,
        state: Tensor,
        memory: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Return the states and the memories."""
        width = weights.of_state.shape[1]
        inner = slice(2 * width, 3 * width)
        doubled = [None if w is None else w.clone() for w in weights]
        for weight in doubled:
            if weight is not None:
                weight[inner].mul_(2)
        of_input, of_state, *biases = doubled
        assert of_input is not None
        assert of_state is not None
        gates = functional.linear(values, of_input, _added(*biases))
        recurrent = of_state.t().contiguous()
        time, batch = gates.shape[:2]
        states = gates.new_empty(time + 1, batch, width)
        # what each gate is multiplied with: g, the last memory, 4 i, tanh(c)
        partners = gates.new_empty(time + 1, batch, 4, width)
        states[0], partners[0, :, 1] = state, memory
        minus_one, scratch = gates.new_tensor(-1.0), gates.new_empty(batch, width)
        i, f, g, o = (gate.unbind() for gate in gates.view(time, batch, 4, width).unbind(2))
        tanh_g, c, four_i, tanh_c = (p.unbind() for p in partners.unbind(2))
        h = states.unbind()
        for t, now in enumerate(gates.unbind()):
            torch.addmm(now, h[t], recurrent, out=now).sigmoid_()
            torch.add(minus_one, g[t], alpha=2, out=tanh_g[t])
            torch.mul(i[t], 4, out=four_i[t])
            torch.mul(f[t], c[t], out=c[t + 1]).addcmul_(i[t], tanh_g[t])
            torch.mul(c[t + 1], 2, out=scratch).sigmoid_()
            torch.add(minus_one, scratch, alpha=2, out=tanh_c[t])
            torch.mul(o[t], tanh_c[t], out=h[t + 1])
        self._gates, self._partners, self._weight = gates, partners[:-1], weights.of_state
        return states, partners[:, :, 1]

    def backward(
        self, states: Tensor | None, memories: Tensor | None, several: bool
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the gradients, in the place of the partners."""
        gates, weight = self._gates, self._weight
        partners = self._partners.clone() if several else self._partners
        time, batch, width = len(gates), gates.shape[1], weight.shape[1]
        found = partners.view(time, batch, -1)
        steps, rows = found.unbind(), gates.unbind()
        _, f, _, o = (gate.unbind() for gate in gates.view(time, batch, 4, width).unbind(2))
        tanh_c, by_c = partners[:, :, 3].unbind(), partners[:, :, :3].unbind()
        dc, through = gates.new_zeros(batch, width), gates.new_empty(batch, width)
        wide, nothing = dc.unsqueeze(1), torch.zeros_like(dc)
        for t in range(time - 1, -1, -1):
            dh = nothing if states is None else states[t]
            if t < time - 1:
                dh = torch.addmm(dh, steps[t + 1], weight)
                dc.mul_(f[t + 1])
            if memories is not None:
                dc.add_(memories[t])
            torch.mul(o[t], tanh_c[t], out=through)
            torch.addcmul(o[t], through, tanh_c[t], value=-1, out=through)
            dc.addcmul_(dh, through)
            by_c[t].mul_(wide)
            tanh_c[t].mul_(dh)
            torch.ops.aten.sigmoid_backward.grad_input(steps[t], rows[t], grad_input=steps[t])
        return found, found, steps[0] @ weight, dc * f[0]


class Gru:
    """h = n + z (h' - n), n = tanh(x_n + r m), with r, z = sigmoid and m the recurrent product."""

    def forward(
        self, values: Tensor, weights: CellWeights, state: Tensor, memory: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the states; there are no memories."""
        inputs = functional.linear(values, weights.of_input, weights.input_bias)
        weight, bias = weights.of_state, weights.state_bias
        time, batch, width = inputs.shape[0], inputs.shape[1], weight.shape[1]
        states = inputs.new_empty(time + 1, batch, width)
        states[0] = state
        products = inputs.new_empty(time, batch, width)
        recurrent = weight.t().contiguous()
        for t in range(time):
            rz, n, before = inputs[t, :, : 2 * width], inputs[t, :, 2 * width :], states[t]
            product = before @ recurrent
            if bias is not None:
                product += bias
            rz.add_(product[:, : 2 * width]).sigmoid_()
            products[t] = product[:, 2 * width :]
            n.addcmul_(rz[:, :width], products[t]).tanh_()
            torch.lerp(n, before, rz[:, width:], out=states[t + 1])
        self._gates, self._states, self._products, self._weight = inputs, states, products, weight
        return states, memory.new_empty(0)

    def backward(
        self, states: Tensor | None, memories: Tensor | None, several: bool
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the gradients."""
        weight, width = self._weight, self._weight.shape[1]
        r, z, n = torch.split(self._gates, width, dim=2)
        by_n = (1 - z) * (1 - n * n)
        by_z = (self._states[:-1] - n) * z * (1 - z)
        by_r = self._products * r * (1 - r)
        inputs, products = torch.empty_like(self._gates), torch.empty_like(self._gates)
        dh = torch.zeros_like(self._states[0])
        for t in range(len(n) - 1, -1, -1):
            if states is not None:
                dh = dh + states[t]
            d_n = dh * by_n[t]
            torch.cat([d_n * by_r[t], dh * by_z[t]], dim=1, out=inputs[t, :, : 2 * width])
            inputs[t, :, 2 * width :] = d_n
            products[t] = inputs[t]
            products[t, :, 2 * width :].mul_(r[t])
            dh = torch.addmm(dh * z[t], products[t], weight)
        return inputs, products, dh, dh.new_empty(0)


class Plain:
    """h = tanh(x + m) or relu(x + m), m the recurrent product."""

    def __init__(self, nonlinearity: str) -> None:
        self._tanh = nonlinearity == "tanh"

    def forward(
        self, values: Tensor, weights: CellWeights, state: Tensor, memory: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the states; there are no memories."""
        bias = _added(weights.input_bias, weights.state_bias)
        inputs, weight = functional.linear(values, weights.of_input, bias), weights.of_state
        states = inputs.new_empty(len(inputs) + 1, *inputs.shape[1:])
        states[0] = state
        recurrent = weight.t().contiguous()
        for t in range(len(inputs)):
            out = torch.addmm(inputs[t], states[t], recurrent, out=states[t + 1])
            out.tanh_() if self._tanh else out.relu_()
        self._states, self._weight = states, weight
        return states, memory.new_empty(0)

    def backward(
        self, states: Tensor | None, memories: Tensor | None, several: bool
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the gradients."""
        after = self._states[1:]
        found = 1 - after * after if self._tanh else (after > 0).to(after.dtype)
        dh = torch.zeros_like(after[0])
        for t in range(len(after) - 1, -1, -1):
            found[t].mul_(dh if states is None else dh + states[t])
            dh = found[t] @ self._weight
        return found, found, dh, dh.new_empty(0)


class _Scan(torch.autograd.Function):
    """Runs a cell over time, and notes the gradients of its products with the two matrices.

    The backward pass uses up what the forward pass kept, unless it is to run several times.
    """

    @staticmethod
    def forward(
        ctx: Any,
        anchor: Tensor,
        values: Tensor,
        state: Tensor,
        memory: Tensor,
        weights: CellWeights,
        cell: Cell,
        uses: tuple[ParameterUse | None, ParameterUse | None],
        several: bool,
    ) -> tuple[Tensor, Tensor]:
        ctx.cell, ctx.uses, ctx.weight, ctx.several = cell, uses, weights.of_input, several
        ctx.set_materialize_grads(False)
        states, memories = cell.forward(values, weights, state, memory)
        for use, given in zip(uses, (values, states[:-1]), strict=True):
            if use is not None:
                use.shape = torch.Size((*values.shape[:2], len(weights.of_input)))
                use.note(given)
        return states[1:], memories[1:]

    @staticmethod
    def backward(ctx: Any, states: Tensor | None, memories: Tensor | None) -> Any:
        inputs, products, state, memory = ctx.cell.backward(states, memories, ctx.several)
        for use, gradient in zip(ctx.uses, (inputs, products), strict=True):
            if use is not None:
                use.gradient = gradient
        of_values, of_state, of_memory = ctx.needs_input_grad[1:4]
        return (
            None,
            inputs @ ctx.weight if of_values else None,
            state if of_state else None,
            memory if of_memory and memory.numel() else None,
            *[None] * 4,
        )


def _flipped(values: Tensor, lengths: Tensor | None) -> Tensor:
    """Return sequences (time, batch, ...) turned round, each within its own length."""
    if lengths is None:
        return values.flip(0)
    places = lengths[None, :] - 1 - torch.arange(len(values), device=values.device)[:, None]
    index = places.clamp_(min=0).unsqueeze(2).expand(-1, -1, values.shape[2])
    return values.gather(0, index)


def _last(values: Tensor, lengths: Tensor | None) -> Tensor:
    if lengths is None:
        return values[-1]
    return values[lengths - 1, torch.arange(values.shape[1], device=values.device)]


def _direction(
    recorder: Recorder,
    cell: Cell,
    values: Tensor,
    weights: list[Any],
    state: Tensor,
    memory: Tensor,
    lengths: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Run one layer in one direction; return its outputs, last state and last memory."""
    of_input, of_state, input_bias, state_bias = (*weights, None, None)[:4]
    uses = tuple(
        recorder.use(pair, 1, build_linear(recorder.piece(pair[0]), recorder.piece(pair[1])))
        if any(recorder.piece(each) is not None for each in pair)
        else None
        for pair in ((of_input, input_bias), (of_state, state_bias))
    )
    fixed = CellWeights(*map(recorder.constant, (of_input, of_state, input_bias, state_bias)))
    out, memories = _Scan.apply(  # type: ignore[no-untyped-call]
        recorder.anchor, values, state, memory, fixed, cell, uses, recorder.asking
    )
    for use in uses:
        if use is not None and recorder.asking:
            use.output = out.detach()
    return out, _last(out, lengths), _last(memories, lengths) if memories.numel() else memory


def _layers(
    recorder: Recorder,
    kind: str,
    values: Tensor,
    first: tuple[Tensor, Tensor],
    weights: list[Any],
    biased: bool,
    layers: int,
    dropout: float,
    training: bool,
    bidirectional: bool,
    lengths: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Run all layers over (time, batch, features)."""
    states, memories = [], []
    each, directions = 4 if biased else 2, 2 if bidirectional else 1
    for layer in range(layers):
        outputs = []
        for direction in range(directions):
            place = layer * directions + direction
            cell: Cell = _CELLS[kind]()
            given = _flipped(values, lengths) if direction else values
            out, state, memory = _direction(
                recorder,
                cell,
                given,
                weights[place * each : (place + 1) * each],
                first[0][place],
                first[1][place],
                lengths,
            )
            outputs.append(_flipped(out, lengths) if direction else out)
            states.append(state)
            memories.append(memory)
        values = outputs[0] if directions == 1 else torch.cat(outputs, dim=2)
        if dropout and layer < layers - 1:
            values = functional.dropout(values, dropout, training)
    return values, torch.stack(states), torch.stack(memories)


_CELLS: dict[str, Any] = {
    "lstm": Lstm,
    "gru": Gru,
    "rnn_tanh": lambda: Plain("tanh"),
    "rnn_relu": lambda: Plain("relu"),
}


def _rule(kind: str) -> Rule:
    with_memory = kind == "lstm"

    def recurrent(recorder: Recorder, input: Tensor, *args: Any) -> Any:
        """Run a recurrent layer on padded or packed sequences."""
        packed = isinstance(args[0], Tensor) and not isinstance(args[1], list)
        if packed:
            sizes, given, weights, *rest = args
            biased, layers, dropout, training, bidirectional = rest
            batch_first = False
        else:
            sizes = None
            given, weights, biased, layers, dropout, training, bidirectional, batch_first = args
        first = tuple(given) if with_memory else (given, given.detach())
        if first[0].shape[-1] != weights[1].shape[1] or len(weights) % (4 if biased else 2):
            return NotImplemented  # projections
        if weights[1].shape[0] != _GATES[kind] * weights[1].shape[1]:
            return NotImplemented
        if any(recorder.piece(values) is not None for values in (input, *first)):
            return NotImplemented
        order, lengths = None, None
        if packed:
            values, lengths = pad_packed_sequence(PackedSequence(input, sizes))
            lengths = lengths.to(values.device)
            order = recorder.packings[-1] if recorder.packings else None
            if order is not None:
                values, lengths = values.index_select(1, order), lengths[order]
                first = tuple(part.index_select(1, order) for part in first)
        else:
            values = input.transpose(0, 1) if batch_first else input
        with torch.autocast(values.device.type, enabled=False):  # a scan is not made short
            out, states, memories = _layers(
                recorder, kind, whole_precision(values),
                (whole_precision(first[0]), whole_precision(first[1])),
                weights, biased, layers, dropout, training, bidirectional, lengths,
            )  # fmt: skip
        if packed:
            assert lengths is not None
            if order is not None:
                back = torch.argsort(order)
                out, states, memories = (v.index_select(1, back) for v in (out, states, memories))
                lengths = lengths[back]
            out, _ = torch._VF._pack_padded_sequence(out, lengths.cpu(), False)
        elif batch_first:
            out = out.transpose(0, 1)
        return (out, states, memories) if with_memory else (out, states)

    return recurrent


_GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
RULES: dict[Any, Rule] = {getattr(torch._VF, kind): _rule(kind) for kind in _CELLS}
