"""Models that the engine of one pass is held to the loop over examples with, in drawn shapes.

Each case draws its shapes and returns a model in float64 and a function that makes the inputs of
some examples.
"""

import torch
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

SMALL = st.integers(1, 5)
CASES = {}


def case(build):
    CASES[build.__name__.replace("_", "-")] = build
    return build


def numbers(*shape):
    """Return a maker of normal inputs of a shape."""
    return lambda size: torch.randn(size, *shape)


def tokens(count, *shape):
    return lambda size: torch.randint(count, (size, *shape))


class Apply(nn.Module):
    """Parts and a function of the module and its inputs."""

    def __init__(self, function, **parts):
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs, **named):
        return self.function(self, *inputs, **named)


def parameter(*shape):
    return nn.Parameter(0.5 * torch.randn(shape))


# ---------------------------------------------------------------------- linear layers


@case
def linear_on_vectors(draw):
    n, m = draw(SMALL), draw(SMALL)
    return nn.Linear(n, m, bias=draw(st.booleans())), numbers(n)


@case
def linear_on_sequences(draw):
    n, m, t = draw(st.integers(1, 24)), draw(st.integers(1, 24)), draw(SMALL)
    return nn.Sequential(nn.Linear(n, m, bias=draw(st.booleans())), nn.Tanh()), numbers(t, n)


@case
def linear_on_grids(draw):
    n, m, t, s = draw(SMALL), draw(SMALL), draw(SMALL), draw(SMALL)
    return nn.Linear(n, m, bias=draw(st.booleans())), numbers(t, s, n)


@case
def perceptron_with_relu_in_place(draw):
    n, m = draw(SMALL), draw(st.integers(2, 6))
    hidden = nn.Sequential(nn.Linear(n, m), nn.ReLU(inplace=True), nn.Linear(m, 3))
    return nn.Sequential(hidden, nn.Softplus()), numbers(n)


@case
def changes_in_place_in_the_middle(draw):
    """What a layer returned is overwritten, as a whole and in part, and as a view."""
    n, t, twice = draw(SMALL), draw(SMALL), draw(st.booleans())

    def run(s, x):
        h = s.b(torch.tanh(s.a(x)))
        h.mul_(2).add_(1)
        h[..., 0] *= 3
        h = s.c(h)
        h.view(-1).mul_(2)
        return s.d(torch.relu_(s.a2(h)) + h if twice else h)

    layers = {name: nn.Linear(6, 6) for name in ("b", "c", "a2", "d")}
    return Apply(run, a=nn.Linear(n, 6), **layers), numbers(t, n)


@case
def residual(draw):
    n, t = draw(SMALL), draw(SMALL)
    return Apply(lambda s, x: x + s.b(torch.relu(s.a(x))), a=nn.Linear(n, 6), b=nn.Linear(6, n)), (
        numbers(t, n)
    )


@case
def same_layer_twice(draw):
    n, t = draw(SMALL), draw(SMALL)
    return Apply(lambda s, x: s.a(torch.tanh(s.a(x))), a=nn.Linear(n, n)), numbers(t, n)


@case
def same_layer_at_two_lengths(draw):
    n, t = draw(st.integers(1, 12)), draw(SMALL)

    def run(s, x):
        return torch.cat([s.a(x), s.a(torch.tanh(x.sum(dim=1, keepdim=True)))], dim=1)

    return Apply(run, a=nn.Linear(n, 7)), numbers(t, n)


@case
def matrix_product(draw):
    n, m, t = draw(SMALL), draw(SMALL), draw(SMALL)
    return Apply(lambda s, x: x @ s.w, w=parameter(n, m)), numbers(t, n)


@case
def transposed_matrix_product(draw):
    n, m, t = draw(SMALL), draw(SMALL), draw(SMALL)
    return Apply(lambda s, x: torch.matmul(x, s.w.T), w=parameter(m, n)), numbers(t, n)


@case
def slices_of_a_matrix(draw):
    n, t = draw(SMALL), draw(SMALL)

    def run(s, x):
        overlapping = functional.linear(x, s.w[:4]) + functional.linear(x, s.w[2:6])
        return torch.tanh(overlapping + functional.linear(x, s.w[6:]))

    return Apply(run, w=parameter(10, n)), numbers(t, n)


@case
def columns_of_a_matrix(draw):
    n, t = draw(st.integers(2, 5)), draw(SMALL)

    def run(s, x):
        return functional.linear(x[..., :1], s.w[:, :1]) * functional.linear(x[..., 1:], s.w[:, 1:])

    return Apply(run, w=parameter(3, n)), numbers(t, n)


@case
def conv1d_of_hugging_face(draw):
    n, m, t = draw(SMALL), draw(SMALL), draw(SMALL)

    def run(s, x):
        flat = torch.addmm(s.b, x.view(-1, x.size(-1)), s.w)
        return torch.tanh(flat.view(*x.shape[:-1], m))

    return Apply(run, w=parameter(n, m), b=parameter(m)), numbers(t, n)


@case
def time_major_rows(draw):
    n, m, t = draw(SMALL), draw(SMALL), draw(SMALL)

    def run(s, x):
        flat = s.a(x.transpose(0, 1).reshape(-1, n))
        return torch.tanh(flat).view(t, -1, m).transpose(0, 1)

    return Apply(run, a=nn.Linear(n, m)), numbers(t, n)


@case
def time_major(draw):
    n, m, t = draw(SMALL), draw(SMALL), draw(SMALL)
    return Apply(lambda s, x: s.a(x.transpose(0, 1)).transpose(0, 1), a=nn.Linear(n, m)), (
        numbers(t, n)
    )


@case
def only_the_last_position(draw):
    n, t = draw(SMALL), draw(SMALL)
    return Apply(lambda s, x: s.a(x)[:, -1], a=nn.Linear(n, 3)), numbers(t, n)


@case
def frozen_weight(draw):
    n, t = draw(SMALL), draw(SMALL)
    model = nn.Sequential(nn.Linear(n, 4), nn.Tanh(), nn.Linear(4, 3))
    model[0].weight.requires_grad_(False)
    return model, numbers(t, n)


@case
def frozen_bias(draw):
    n, t = draw(SMALL), draw(SMALL)
    model = nn.Sequential(nn.Linear(n, 4), nn.Tanh(), nn.Linear(4, 3))
    model[2].bias.requires_grad_(False)
    return model, numbers(t, n)


@case
def frozen_first_layer(draw):
    n, t = draw(SMALL), draw(SMALL)
    model = nn.Sequential(nn.Linear(n, 4), nn.Tanh(), nn.Linear(4, 3))
    model[0].requires_grad_(False)
    return model, numbers(t, n)


@case
def frozen_last_layer(draw):
    n, t = draw(SMALL), draw(SMALL)
    model = nn.Sequential(nn.Linear(n, 4), nn.Tanh(), nn.Linear(4, 3))
    model[2].requires_grad_(False)
    return model, numbers(t, n)


@case
def adapters_of_matrices(draw):
    n, t, r = draw(SMALL), draw(SMALL), draw(st.integers(1, 2))
    base = nn.Linear(n, 4).requires_grad_(False)
    zero = nn.Parameter(torch.zeros(r, 4))
    return Apply(lambda s, x: s.base(x) + x @ s.a @ s.b, base=base, a=parameter(n, r), b=zero), (
        numbers(t, n)
    )


@case
def adapters_of_layers(draw):
    n, t, r = draw(SMALL), draw(SMALL), draw(st.integers(1, 2))
    down, up = nn.Linear(n, r, bias=False), nn.Linear(r, 4, bias=False)
    nn.init.zeros_(up.weight)
    base = nn.Linear(n, 4).requires_grad_(False)
    return Apply(lambda s, x: s.base(x) + 2 * s.up(s.down(x)), base=base, down=down, up=up), (
        numbers(t, n)
    )


# ---------------------------------------------------------------------- convolutions


def _convolution(draw, dims, kind):
    groups, kernel = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    channels, out = groups * draw(st.integers(1, 2)), groups * draw(st.integers(1, 2))
    around = draw(st.sampled_from([0, 1, 2, "same", "valid"]))
    stride = 1 if around == "same" else draw(st.integers(1, 2))
    mode = draw(st.sampled_from(["zeros", "circular"]))
    size = draw(st.integers(5, 6))
    layer = kind(
        channels, out, kernel, stride, around, draw(st.integers(1, 2)), groups,
        draw(st.booleans()), mode,
    )  # fmt: skip
    return nn.Sequential(layer, nn.Tanh()), numbers(channels, *[size] * dims)


@case
def convolution_1d(draw):
    return _convolution(draw, 1, nn.Conv1d)


@case
def convolution_2d(draw):
    return _convolution(draw, 2, nn.Conv2d)


@case
def convolution_3d(draw):
    return _convolution(draw, 3, nn.Conv3d)


@case
def convolution_of_unequal_sides(draw):
    layer = nn.Conv2d(2, 3, (1, 3), (2, 1), (0, 2), (1, 2))
    return layer, numbers(2, draw(st.integers(2, 5)), draw(st.integers(3, 5)))


@case
def convolution_by_depth(draw):
    channels = draw(st.integers(1, 4))
    layers = (
        nn.Conv2d(channels, 2 * channels, 3, padding=1, groups=channels),
        nn.Conv2d(2 * channels, 3, 1),
    )
    return nn.Sequential(*layers), numbers(channels, 4, 4)


@case
def convolution_with_many_channels(draw):
    """So many that norms are taken from Gram matrices."""
    return nn.Conv2d(8, 12, 3), numbers(8, draw(st.integers(3, 4)), 3)


@case
def same_convolution_twice(draw):
    channels = draw(st.integers(1, 3))
    return Apply(
        lambda s, x: s.a(torch.tanh(s.a(x))) + s.a(x), a=nn.Conv1d(channels, channels, 3, padding=1)
    ), numbers(channels, draw(SMALL))


@case
def convolution_over_frames(draw):
    """Frames of an example become examples of a batch."""
    frames = draw(SMALL)

    def run(s, x):
        return s.a(x.flatten(0, 1)).unflatten(0, (-1, frames)).mean(dim=1)

    return Apply(run, a=nn.Conv2d(2, 3, 2)), numbers(frames, 2, 3, 3)


# ---------------------------------------------------------------------- tables


@case
def embedding(draw):
    count, t = draw(st.integers(1, 5)), draw(st.integers(1, 6))
    table = nn.Embedding(count, draw(SMALL), padding_idx=draw(st.sampled_from([None, 0, -1])))
    return nn.Sequential(table, nn.Tanh()), tokens(count, t)


@case
def embedding_of_one_token_each(draw):
    return nn.Embedding(4, draw(SMALL)), tokens(4)


@case
def embedding_used_twice(draw):
    t = draw(SMALL)
    return Apply(lambda s, x: s.a(x) * s.a((x + 1) % 4).cumsum(1), a=nn.Embedding(4, 3)), (
        tokens(4, t)
    )


@case
def tied_output_layer(draw):
    t, count = draw(SMALL), draw(st.integers(2, 6))
    out = nn.Linear(3, count, bias=draw(st.booleans()))
    table = nn.Embedding(count, 3)
    out.weight = table.weight
    return Apply(lambda s, x: s.out(torch.tanh(s.table(x)).cumsum(1)), table=table, out=out), (
        tokens(count, t)
    )


@case
def tied_output_layer_of_small_tokens(draw):
    t = draw(SMALL)
    table = nn.Embedding(5, 3)
    run = Apply(lambda s, x: torch.tanh(s.table(x)) @ s.table.weight.T, table=table)
    return run, lambda size: torch.randint(5, (size, t), dtype=torch.int32)


@case
def tied_output_layer_with_many_tokens(draw):
    """So many that norms of the output layer are taken from Gram matrices."""
    table = nn.Embedding(60, 20)
    return Apply(lambda s, x: torch.tanh(s.table(x)) @ s.table.weight.T, table=table), (
        tokens(60, draw(st.integers(2, 4)))
    )


@case
def position_parameter(draw):
    n, t = draw(SMALL), draw(SMALL)
    return Apply(lambda s, x: torch.tanh(s.a(x + s.pos)), a=nn.Linear(n, 3), pos=parameter(t, n)), (
        numbers(t, n)
    )


@case
def position_parameter_cut(draw):
    n, t = draw(SMALL), draw(SMALL)

    def run(s, x):
        return torch.tanh(s.a(x + s.pos[:, : x.shape[1]]))

    return Apply(run, a=nn.Linear(n, 3), pos=parameter(1, t + 2, n)), numbers(t, n)


@case
def position_embedding(draw):
    n, t = draw(SMALL), draw(SMALL)

    def run(s, x):
        return torch.tanh(s.tok(x) + s.pos(torch.arange(x.shape[1])))

    return Apply(run, tok=nn.Embedding(5, n), pos=nn.Embedding(7, n)), tokens(5, t)


@case
def position_ids_of_one_row(draw):
    n, t = draw(st.integers(2, 5)), draw(SMALL)

    def run(s, x):
        places = torch.arange(x.shape[1]).unsqueeze(0)
        return torch.tanh(s.norm(s.tok(x) + s.pos(places)))

    parts = {"tok": nn.Embedding(5, n), "pos": nn.Embedding(7, n), "norm": nn.LayerNorm(n)}
    return Apply(run, **parts), tokens(5, t)


@case
def positions_through_a_layer(draw):
    n, t = draw(SMALL), draw(SMALL)

    def run(s, x):
        return torch.tanh(x + s.a(torch.arange(t, dtype=x.dtype)[:, None]))

    return Apply(run, a=nn.Linear(1, n)), numbers(t, n)


@case
def class_token(draw):
    n, t = draw(SMALL), draw(SMALL)

    def run(s, x):
        return torch.tanh(s.a(torch.cat([s.cls.expand(len(x), -1, -1), x], dim=1)))

    return Apply(run, a=nn.Linear(n, 3), cls=parameter(1, 1, n)), numbers(t, n)


@case
def learned_queries(draw):
    n, t = draw(SMALL), draw(SMALL)

    def run(s, x):
        asked = s.queries.unsqueeze(0).expand(x.shape[0], -1, -1)
        return torch.softmax(s.a(asked) @ x.mT, dim=-1) @ x

    return Apply(run, a=nn.Linear(n, n), queries=parameter(2, n)), numbers(t, n)


@case
def scale_and_offset(draw):
    n, t = draw(SMALL), draw(SMALL)
    return Apply(
        lambda s, x: torch.tanh(x * s.gamma + s.beta), gamma=parameter(n), beta=parameter(n)
    ), (numbers(t, n))


@case
def scale_of_channels(draw):
    c = draw(SMALL)
    return Apply(
        lambda s, x: s.gamma * torch.tanh(x) + s.one * x, gamma=parameter(c, 1, 1), one=parameter()
    ), numbers(c, 3, 2)


# ---------------------------------------------------------------------- normalisations


@case
def layer_norm(draw):
    n, t = draw(st.integers(2, 5)), draw(SMALL)
    layer = nn.LayerNorm(n, bias=draw(st.booleans()))
    return nn.Sequential(layer, nn.Tanh()), numbers(t, n)


@case
def layer_norm_on_vectors(draw):
    n = draw(st.integers(2, 5))
    return nn.Sequential(nn.Linear(n, n), nn.LayerNorm(n)), numbers(n)


@case
def layer_norm_of_two_dimensions(draw):
    n, t = draw(st.integers(2, 4)), draw(st.integers(2, 4))
    return nn.Sequential(nn.LayerNorm((t, n)), nn.Tanh()), numbers(*draw(
        st.sampled_from([(), (2,)])
    ), t, n)  # fmt: skip


@case
def group_norm(draw):
    groups = draw(st.integers(1, 2))
    channels = groups * draw(st.integers(1, 3))
    layers = nn.Conv2d(2, channels, 2), nn.GroupNorm(groups, channels), nn.Tanh()
    return nn.Sequential(*layers), numbers(2, 4, 3)


@case
def instance_norm_1d(draw):
    channels = draw(SMALL)
    return nn.Sequential(nn.InstanceNorm1d(channels, affine=True), nn.Tanh()), numbers(channels, 4)


@case
def instance_norm_2d(draw):
    channels = draw(SMALL)
    layers = nn.InstanceNorm2d(channels, affine=True), nn.Tanh(), nn.Conv2d(channels, 2, 2)
    return nn.Sequential(*layers), numbers(channels, 3, 2)


@case
def rms_norm(draw):
    n, t = draw(st.integers(2, 5)), draw(SMALL)
    return nn.Sequential(nn.RMSNorm(n), nn.Tanh()), numbers(t, n)


# ---------------------------------------------------------------------- recurrent layers


KINDS = {
    "lstm": nn.LSTM,
    "gru": nn.GRU,
    "rnn": nn.RNN,
    "rnn-relu": lambda *a, **k: nn.RNN(*a, nonlinearity="relu", **k),
}


def _recurrent(kind, draw, n, h, batch_first):
    options = {
        "num_layers": draw(st.integers(1, 2)),
        "bidirectional": draw(st.booleans()),
        "bias": draw(st.booleans()),
        "batch_first": batch_first,
    }
    return KINDS[kind](n, h, **options)


def _used(draw, kind):
    """Return a function of all that a recurrent layer returns, that uses some of it."""
    which = draw(st.sampled_from(["all", "last", "state", "memory", "everything"]))

    def read(out, last):  # out: (batch, time, features)
        state, memory = last if kind == "lstm" else (last, last)
        flat = [out.flatten(1), state.transpose(0, 1).flatten(1), memory.transpose(0, 1).flatten(1)]
        if which == "everything":
            return torch.cat(flat, dim=1)
        return {"all": flat[0], "last": out[:, -1], "state": flat[1], "memory": flat[2]}[which]

    return read


def _recurrent_case(kind):
    def build(draw):
        n, h, t, first = draw(SMALL), draw(SMALL), draw(SMALL), draw(st.booleans())
        layer, read = _recurrent(kind, draw, n, h, first), _used(draw, kind)

        def run(s, x):
            out, last = s.layer(x if first else x.transpose(0, 1))
            return read(out if first else out.transpose(0, 1), last)

        return Apply(run, layer=layer), numbers(t, n)

    return build


def _given_state_case(kind):
    def build(draw):
        n, h, t = draw(SMALL), draw(SMALL), draw(SMALL)
        layer, read = _recurrent(kind, draw, n, h, True), _used(draw, kind)
        count = layer.num_layers * (2 if layer.bidirectional else 1)

        def run(s, x):
            start = s.first(x[:, 0]).unflatten(1, (count, h)).transpose(0, 1)
            given = (start, torch.tanh(start)) if kind == "lstm" else start
            return read(*s.layer(x, given))

        return Apply(run, layer=layer, first=nn.Linear(n, count * h)), numbers(t, n)

    return build


def _packed_case(kind):
    def build(draw):
        n, h, t = draw(SMALL), draw(SMALL), draw(SMALL)
        layer, read = _recurrent(kind, draw, n, h, True), _used(draw, kind)
        sort, by_name = draw(st.booleans()), draw(st.booleans())

        def run(s, x, lengths):
            packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=sort)
            out, last = s.layer(input=packed) if by_name else s.layer(packed)
            out, _ = pad_packed_sequence(out, batch_first=True, total_length=t)
            return read(out, last)

        def make(size):
            lengths = torch.randint(1, t + 1, (size,))
            return torch.randn(size, t, n), lengths.sort(descending=True)[0] if sort else lengths

        return Apply(run, layer=layer), make

    return build


for _kind in KINDS:
    CASES[_kind] = _recurrent_case(_kind)
    CASES[f"{_kind}-with-a-given-state"] = _given_state_case(_kind)
    CASES[f"{_kind}-on-packed-sequences"] = _packed_case(_kind)


@case
def packed_sequences_through_two_layers(draw):
    n, t = draw(SMALL), draw(SMALL)

    def run(s, x, lengths):
        packed = pack_padded_sequence(s.up(x), lengths, batch_first=True, enforce_sorted=False)
        middle, _ = s.a(packed)
        out, (state, _) = s.b(middle)
        out = pad_packed_sequence(out, batch_first=True, total_length=t)[0]
        return s.out(torch.cat([out.sum(dim=1), state[-1]], dim=1))

    parts = {
        "up": nn.Linear(n, 3),
        "a": nn.GRU(3, 2, bidirectional=True),
        "b": nn.LSTM(4, 3),
        "out": nn.Linear(6, 2),
    }

    def make(size):
        return {"x": torch.randn(size, t, n), "lengths": torch.randint(1, t + 1, (size,))}

    return Apply(run, **parts), make


@case
def partly_frozen_lstm(draw):
    layer = nn.LSTM(3, 2, num_layers=2, batch_first=True)
    names = [name for name, _ in layer.named_parameters()]
    for name in draw(st.sets(st.sampled_from(names), min_size=1, max_size=len(names) - 1)):
        getattr(layer, name).requires_grad_(False)
    return Apply(lambda s, x: s.layer(x)[0], layer=layer), numbers(draw(SMALL), 3)


@case
def learned_first_state(draw):
    layers = draw(st.integers(1, 2))
    layer = nn.GRU(3, 2, num_layers=layers, batch_first=True)
    return Apply(
        lambda s, x: s.layer(x, s.first.expand(-1, len(x), -1).contiguous())[0],
        layer=layer,
        first=parameter(layers, 1, 2),
    ), numbers(draw(SMALL), 3)


# ---------------------------------------------------------------------- attention


def _masks(draw, t, s):
    """Return a mask of scores, in which every query sees something."""
    kind = draw(st.sampled_from(["none", "bool", "float"]))
    hidden = torch.rand(t, s) < 0.4
    hidden[:, 0] = False
    return {"none": None, "bool": hidden, "float": torch.randn(t, s)}[kind]


@case
def self_attention(draw):
    heads, t, first = draw(st.integers(1, 2)), draw(SMALL), draw(st.booleans())
    layer = nn.MultiheadAttention(4, heads, bias=draw(st.booleans()), batch_first=first)
    mask, weights = _masks(draw, t, t), draw(st.booleans())

    def run(s, x):
        given = x if first else x.transpose(0, 1)
        hidden = None if mask is None or mask.dtype == torch.bool else mask.to(x.dtype)
        hidden = mask if hidden is None else hidden
        out, seen = s.layer(given, given, given, attn_mask=hidden, need_weights=weights)
        out = out if first else out.transpose(0, 1)
        return torch.cat([out, seen], dim=2) if weights else out

    return Apply(run, layer=layer), numbers(t, 4)


@case
def attention_with_padding(draw):
    heads, t, weights = draw(st.integers(1, 2)), draw(SMALL), draw(st.booleans())
    layer = nn.MultiheadAttention(4, heads, batch_first=True)

    def run(s, x, padding):
        return s.layer(x, x, x, key_padding_mask=padding, need_weights=weights)[0]

    def make(size):
        padding = torch.rand(size, t) < 0.5
        padding[:, 0] = False
        return torch.randn(size, t, 4), padding

    return Apply(run, layer=layer), make


@case
def cross_attention(draw):
    t, length, first = draw(SMALL), draw(SMALL), draw(st.booleans())
    layer = nn.MultiheadAttention(4, 2, batch_first=first)
    same, weights = draw(st.booleans()), draw(st.booleans())

    def run(s, q, k):
        values = k if same else torch.sin(k)
        given = [part if first else part.transpose(0, 1) for part in (q, k, values)]
        out = s.layer(*given, need_weights=weights)[0]
        return out if first else out.transpose(0, 1)

    return Apply(run, layer=layer), lambda size: (
        torch.randn(size, t, 4),
        torch.randn(size, length, 4),
    )


@case
def cross_attention_of_other_widths(draw):
    t, length = draw(SMALL), draw(SMALL)
    layer = nn.MultiheadAttention(4, 2, kdim=3, vdim=5, batch_first=True, bias=draw(st.booleans()))
    return Apply(lambda s, q, k, v: s.layer(q, k, v)[0], layer=layer), lambda size: (
        torch.randn(size, t, 4),
        torch.randn(size, length, 3),
        torch.randn(size, length, 5),
    )


@case
def attention_with_a_mask_for_each_example(draw):
    t = draw(SMALL)
    layer = nn.MultiheadAttention(4, 2, batch_first=True)

    def run(s, x, hidden):
        mask = hidden[:, None].expand(-1, 2, -1, -1).flatten(0, 1)
        return s.layer(x, x, x, attn_mask=mask, need_weights=False)[0]

    def make(size):
        hidden = torch.rand(size, t, t) < 0.4
        hidden[:, :, 0] = False
        return torch.randn(size, t, 4), hidden

    return Apply(run, layer=layer), make


def _block(draw, kind, first):
    options = {"dropout": 0.0, "batch_first": first, "norm_first": draw(st.booleans())}
    return kind(4, 2, 6, **options)


@case
def encoder_layer(draw):
    t, first = draw(SMALL), draw(st.booleans())
    layer = _block(draw, nn.TransformerEncoderLayer, first)

    def run(s, x):
        return s.layer(x) if first else s.layer(x.transpose(0, 1)).transpose(0, 1)

    return Apply(run, layer=layer), numbers(t, 4)


@case
def causal_encoder(draw):
    t, told = draw(SMALL), draw(st.booleans())
    layer = _block(draw, nn.TransformerEncoderLayer, True)
    stack = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def run(s, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=x.dtype)
        return s.stack(x, mask, is_causal=True) if told else s.stack(x, mask)

    return Apply(run, stack=stack), numbers(t, 4)


@case
def padded_encoder(draw):
    t = draw(SMALL)
    layer = _block(draw, nn.TransformerEncoderLayer, True)
    stack = nn.TransformerEncoder(layer, 2, nn.LayerNorm(4), enable_nested_tensor=False)

    def make(size):
        padding = torch.rand(size, t) < 0.5
        padding[:, 0] = False
        return torch.randn(size, t, 4), padding

    return Apply(lambda s, x, p: s.stack(x, src_key_padding_mask=p), stack=stack), make


@case
def decoder_layer(draw):
    t, length, first = draw(SMALL), draw(SMALL), draw(st.booleans())
    layer = _block(draw, nn.TransformerDecoderLayer, first)

    def run(s, x, memory):
        mask = nn.Transformer.generate_square_subsequent_mask(t, dtype=x.dtype)
        given = (x, memory) if first else (x.transpose(0, 1), memory.transpose(0, 1))
        out = s.layer(*given, tgt_mask=mask, tgt_is_causal=True)
        return out if first else out.transpose(0, 1)

    return Apply(run, layer=layer), lambda size: {
        "x": torch.randn(size, t, 4),
        "memory": torch.randn(size, length, 4),
    }


@case
def small_language_model(draw):
    t = draw(SMALL)
    layer = _block(draw, nn.TransformerEncoderLayer, True)

    def run(s, x):
        mask = nn.Transformer.generate_square_subsequent_mask(t, dtype=s.tok.weight.dtype)
        return s.block(s.tok(x) + s.pos[:, :t], mask, is_causal=True) @ s.tok.weight.T

    return Apply(run, tok=nn.Embedding(6, 4), pos=parameter(1, 6, 4), block=layer), tokens(6, t)
