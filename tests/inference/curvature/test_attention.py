"""Attention spelled out: the outputs of torch's own, Kronecker factors by their definition, parts of it, and what is
done where it cannot be had. (The curvature of every structure is compared with the twin in ``test_networks.py``.)"""

from __future__ import annotations

import contextlib
import itertools

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import temperance as tp
from temperance.core.errors import NetworkError
from temperance.data import Data
from temperance.engine.engine import Engine
from temperance.inference.curvature.attention import spelled
from temperance.inference.curvature.capture import Capture

from .attentions import ATTENDING, OUTPUTS, WIDTH, Attending, Decoder, Encoder
from .test_kronecker import kronecker, output_gradients
from .twin import assert_same, assert_same_curvature, categorical, curvature_of, fit, make_twin, only
from .zoo import ROWS, targets

F64 = torch.float64


def seeded(make) -> nn.Module:
    torch.manual_seed(5)
    network = make().double().eval()
    with torch.no_grad():
        for p in network.parameters():
            p.add_(0.4 * torch.randn_like(p))
    return network


def inputs(*shape: int) -> Tensor:
    return torch.randn(ROWS, *shape, generator=torch.Generator().manual_seed(1), dtype=F64)


def target_of(network: nn.Module) -> tp.Target:
    return tp.Target(network, tp.Categorical(), tp.GaussianPrior(scale=0.7))


# ---------------------------------------------------------------------- the same function


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("weights", ["averaged", "each", "none"])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_outputs_are_those_of_torch(batch_first: bool, weights: str, dropout: float) -> None:
    """With both kinds of both masks, rows of its own, causal where torch leaves the mask to its kernel; in training,
    dropped out by the same draws."""
    torch.manual_seed(0)
    hidden = torch.ones(4, 5, dtype=torch.bool).triu(1)
    padding = torch.zeros(3, 5, dtype=torch.bool)
    padding[1, -2:] = True
    masks = [None, hidden, torch.randn(4, 5, dtype=F64), torch.randn(6, 4, 5, dtype=F64)]
    paddings = [None, padding, torch.randn(3, 5, dtype=F64)]
    for extra, mask, pad, causal in itertools.product([False, True], masks, paddings, [False, True]):
        if (causal and mask is not hidden) or (mask is not None and pad is not None and mask.dtype != pad.dtype):
            continue
        settings = {"add_bias_kv": extra, "add_zero_attn": extra, "vdim": 3 if extra else None}
        module = nn.MultiheadAttention(6, 2, dropout, batch_first=batch_first, **settings).double().train(dropout > 0)
        given = [torch.randn(3, n, width, dtype=F64) for n, width in ((4, 6), (5, 6), (5, module.vdim))]
        given = given if batch_first else [t.transpose(0, 1) for t in given]
        how = {"attn_mask": mask, "key_padding_mask": pad, "is_causal": causal}
        how |= {"need_weights": weights != "none", "average_attn_weights": weights != "each"}
        made = []
        attention = spelled(module)
        assert attention is not None
        torch.manual_seed(1)
        made.append(module(*given, **how))
        with attention.installed():
            torch.manual_seed(1)
            made.append(module(*given, **how))
        torch.testing.assert_close(made[1], made[0], rtol=1e-10, atol=1e-10)
        assert "forward" not in vars(module)


def test_one_example_without_a_batch_is_left_to_torch() -> None:
    module = nn.MultiheadAttention(4, 2).double()
    x = inputs(4)
    expected = module(x, x, x)
    with spelled(module).installed():
        torch.testing.assert_close(module(x, x, x), expected)
        with pytest.raises(RuntimeError, match="Need attn_mask"):
            module(x, x, x, is_causal=True)


def capture_of(network: nn.Module, x: Tensor) -> Capture:
    target = target_of(network)
    engine = Engine(target, Data(x, targets()))
    made = Capture(engine, target.initial_theta(), {}, None)
    made.verify(x)
    return made


@pytest.mark.parametrize("name", ATTENDING)
def test_gradients_of_single_examples_are_those_of_automatic_differentiation(name: str) -> None:
    network, x = seeded(lambda: Attending(**ATTENDING[name])), inputs(3, WIDTH)
    capture = capture_of(network, x)
    assert {layer.name for layer in capture.layers} == {"attention", "attention.out_proj", "head"}
    cotangent = torch.randn(ROWS, OUTPUTS, dtype=F64)
    with capture.attached():
        flow = capture.run(x)
        found = [
            layer.jacobian(calls.inputs, gradients, ROWS)
            for layer, calls, gradients in zip(capture.layers, flow.calls, flow.gradients(cotangent), strict=True)
        ]
    for layer, made in zip(capture.layers, found, strict=True):
        own = [dict(network.named_parameters())[e.name] for e in layer.entries.values()]
        for n in range(ROWS):
            grads = torch.autograd.grad(network(x[n : n + 1]), own, cotangent[n : n + 1])
            assert_same(made[n], torch.cat([g.flatten() for g in grads]))


# ---------------------------------------------------------------------- Kronecker factors


@pytest.mark.parametrize("sharing", ["expand", "reduce"])
@pytest.mark.parametrize("across", [False, True])
def test_each_map_has_the_factors_of_a_linear_layer(across: bool, sharing: str) -> None:
    """Written with four linear maps by hand: query, key, value, and the way out."""
    network = seeded(lambda: Attending(batch_first=True, across=across))
    x, y = inputs(3, WIDTH), targets()
    module = network.attention
    given = network.places(x)
    weights, biases = module.in_proj_weight.chunk(3), module.in_proj_bias.chunk(3)
    q, k, v = maps = [F.linear(a, w, b) for a, w, b in zip(given, weights, biases, strict=True)]
    heads = [t.view(ROWS, -1, 2, WIDTH // 2).transpose(1, 2) for t in (q, k, v)]
    mixed = ((heads[0] @ heads[1].mT / (WIDTH / 2) ** 0.5).softmax(-1) @ heads[2]).transpose(1, 2).flatten(2)
    out = module.out_proj(mixed)
    f = network.head(out.tanh().mean(1))
    assert_same(f.detach(), network(x).detach())
    a_and_z = [*zip(given, maps, strict=True), (mixed.detach(), out)]
    expected = [kronecker(a, output_gradients(f, z), f, True, sharing == "reduce") for a, z in a_and_z]
    announced = contextlib.nullcontext()
    if sharing == "reduce":  # the softmax over keys leaves nothing
        announced = pytest.warns(tp.errors.TemperanceWarning, match="layer 'attention.key': its gradients .* cancel")
    with announced:
        posterior = fit(target_of(network), tp.KFAC(sharing=sharing, batch_size=3), x, y, network)
    square, packed = WIDTH**2, 3 * WIDTH**2
    for n, block in enumerate(posterior.operator.blocks[:3]):
        bias = packed + n * WIDTH
        assert block.places == ((n * square, (n + 1) * square), (bias, bias + WIDTH))
    for n, (block, known) in enumerate(zip(posterior.operator.blocks[:4], expected, strict=True)):
        if sharing == "expand" or n != 1:
            assert_same_curvature(block.dense(), known)


def test_places_that_do_not_count_are_left_out_of_each_map_by_itself() -> None:
    """Of words without a label the query leads nowhere, while others still look at their key and value."""

    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
            self.head = nn.Linear(WIDTH, OUTPUTS)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.attention(x, x, x)[0])

    network, x = seeded(Tagger), inputs(3, WIDTH)
    y = torch.randint(OUTPUTS, (ROWS, 3), generator=torch.Generator().manual_seed(2))
    y[:, 0] = -100
    target = tp.Target(network, tp.PerPosition(tp.Categorical()), tp.GaussianPrior(scale=0.7))
    query, key, value = fit(target, tp.KFAC(batch_size=4), x, y, network).operator.blocks[:3]
    for block, seen in ((query, x[:, 1:]), (key, x), (value, x)):
        a = F.pad(seen.flatten(0, 1), (0, 1), value=1.0)
        assert_same(block.factors()[0], a.mT @ a / len(a))


# ---------------------------------------------------------------------- parts of it, and where it cannot be had

PARTS = {
    "the way out": (["attention.out_proj.weight", "attention.out_proj.bias"], {}),
    "biases": (["attention.in_proj_bias", "attention.bias_k"], {"add_bias_kv": True}),
    "one of three weights": (["attention.k_proj_weight"], {"across": True, "kdim": 2}),
    "packed, without bias": (["attention.in_proj_weight", "head.weight"], {"batch_first": True}),
}


@pytest.mark.parametrize("curvature", [tp.Dense(), tp.Diagonal(), tp.EKFAC()], ids=lambda c: type(c).__name__)
@pytest.mark.parametrize("name", PARTS)
def test_some_of_its_parameters(name: str, curvature) -> None:
    names, how = PARTS[name]
    network, x = seeded(lambda: Attending(**how)), inputs(3, WIDTH)
    twin = make_twin(network, categorical(), x, targets())
    index = twin.place(*names).sort().values
    found = only(curvature_of(fit(target_of(network), curvature, x, twin.y, network, on=names)), index)
    expected = only(twin.ggn(), index)
    if isinstance(curvature, tp.EKFAC):
        assert_same(found.trace(), expected.trace())
        return
    assert_same_curvature(found, expected if isinstance(curvature, tp.Dense) else torch.diag(expected.diagonal()))


def test_the_second_layer_of_padded_rows() -> None:
    """Torch would make nested tensors for its fast path, which a layer with gradients then refuses."""
    network, x = seeded(lambda: Encoder(2, padding=True)), inputs(4, WIDTH)
    names = [name for name, _ in network.named_parameters() if name.startswith("layers.layers.1.")]
    twin = make_twin(network, categorical(), x, targets())
    index = twin.place(*names)
    found = curvature_of(fit(target_of(network), tp.Dense(), x, twin.y, network, on=names))
    assert_same_curvature(only(found, index), only(twin.ggn(), index))
    assert torch.backends.mha.get_fastpath_enabled()


def test_a_decoder_has_a_rule_for_every_layer() -> None:
    capture = capture_of(seeded(Decoder), inputs(5, WIDTH))
    assert not capture.rest
    assert {"layer.self_attn", "layer.multihead_attn", "layer.multihead_attn.out_proj"} <= {
        layer.name for layer in capture.layers
    }


def test_where_spelling_out_gives_other_outputs_it_is_not_done() -> None:
    """Torch never calls ``out_proj``, so a hook there has no part in the network as it is."""
    network, x = seeded(lambda: Attending(batch_first=True)), inputs(3, WIDTH)
    twin = make_twin(network, categorical(), x, targets())
    network.attention.out_proj.register_forward_hook(lambda module, args, output: 1.01 * output)
    capture = capture_of(network, x)
    assert set(capture.rest) == {"attention", "attention.out_proj"}
    assert_same_curvature(curvature_of(fit(target_of(network), tp.Dense(), x, twin.y, network)), twin.ggn())


def test_another_way_out_is_not_spelled_out() -> None:
    class Doubled(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    module = nn.MultiheadAttention(4, 2)
    assert spelled(module) is not None
    module.out_proj = Doubled(4, 4)
    assert spelled(module) is None


def test_a_parameter_that_it_does_not_know_is_noticed() -> None:
    class Gained(nn.MultiheadAttention):
        def __init__(self) -> None:
            super().__init__(WIDTH, 2, batch_first=True)
            self.gain = nn.Parameter(torch.ones(()))

    network, x = seeded(lambda: Attending(batch_first=True)), inputs(3, WIDTH)
    network.attention = Gained().double()
    capture = capture_of(network, x)
    assert [e.name for e in capture.rest["attention"]][-1] == "attention.gain"
    assert "attention.out_proj" in {layer.name for layer in capture.layers}


def test_words_first_have_a_rule_for_every_layer_and_share_it() -> None:
    """What was found out about a network is remembered, the dimension of its rows too."""
    network, x = seeded(lambda: Encoder(1, batch_first=False)), inputs(3, WIDTH)
    first = capture_of(network, x)
    assert not first.rest
    assert {"layers.layers.0.linear1", "layers.layers.0.norm2"} <= first.turned
    again = Capture(first.engine, first.theta, {}, None)
    assert again.recall()
    assert again.turned == first.turned
    cotangent = torch.randn(ROWS, OUTPUTS, dtype=F64)
    with again.attached():
        made = again.run(x).gradients(cotangent)
    shapes = {layer.name: gradients[0].shape[:2] for layer, gradients in zip(again.layers, made, strict=True)}
    assert shapes["layers.layers.0.linear1"] == (ROWS, 3)


def test_the_optimiser_vogn_refuses_it() -> None:
    with pytest.raises(NetworkError, match="no rule for gradients of single examples in MultiheadAttention"):
        tp.optim.VOGN(Attending(), lr=0.1, num_data=10)
