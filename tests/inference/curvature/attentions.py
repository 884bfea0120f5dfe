"""Networks around ``nn.MultiheadAttention``, in every way in which it is built and called."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

OUTPUTS = 3
WIDTH = 4


class Attending(nn.Module):
    """Rows of words to classes. ``settings`` are those of the attention, ``given`` how it is called: ``mask`` and
    ``padding`` hide some keys, ``across`` takes queries, keys and values from different places and as many."""

    def __init__(
        self, *, mask: str = "", padding: bool = False, across: bool = False, weights: bool = True, **settings
    ) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2, **settings)
        self.mask, self.padding, self.across, self.weights = mask, padding, across, weights
        self.head = nn.Linear(WIDTH, OUTPUTS)

    def places(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, rows first."""
        if not self.across:
            return x, x, x
        key, value = x[:, 1:, : self.attention.kdim], x[:, 1:].flip(-1)[..., : self.attention.vdim]
        return x[:, :2].sin(), key, value

    def masks(self, x: Tensor, queries: int, keys: int) -> dict[str, Tensor | None]:
        signs = torch.tensor([-1.0, 2.0], dtype=x.dtype)
        by_key = torch.einsum("b,h,s->bhs", x[:, 0, 0], signs, torch.arange(keys).to(x)).flatten(0, 1)
        made = {
            "": None,
            "bool": torch.ones(queries, keys, dtype=torch.bool).triu(1),
            "float": torch.linspace(-1, 1, queries * keys, dtype=x.dtype).view(queries, keys),
            "each": by_key.unsqueeze(1).expand(-1, queries, -1),
        }
        padding = None
        if self.padding:  # of each row another number of words counts
            padding = torch.arange(keys) >= 1 + (x[:, 0, :1] > 0).long() + (x[:, 1, :1] > 0).long()
            if self.mask == "float":  # torch wants both of one kind
                padding = torch.zeros_like(padding, dtype=x.dtype).masked_fill(padding, -math.inf)
        return {"attn_mask": made[self.mask], "key_padding_mask": padding}

    def forward(self, x: Tensor) -> Tensor:
        given = self.places(x)
        masks = self.masks(x, given[0].shape[1], given[1].shape[1])
        if not self.attention.batch_first:
            first = given[0].transpose(0, 1)
            given = (first, first, first) if not self.across else tuple(t.transpose(0, 1) for t in given)
        made, _ = self.attention(*given, need_weights=self.weights, **masks)
        return self.head(made.tanh().mean(int(self.attention.batch_first)))


class TwoOfOneWeight(nn.Module):
    """Two attentions with one packed weight between them."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.two = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.two.in_proj_weight = self.one.in_proj_weight
        self.head = nn.Linear(WIDTH, OUTPUTS)

    def forward(self, x: Tensor) -> Tensor:
        y = self.one(x, x, x)[0].tanh()
        return self.head(self.two(y, y, y)[0].tanh().mean(1))


class CalledTwice(nn.Module):
    """One attention, first of a sentence to itself, then of its first word to the outcome."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.head = nn.Linear(WIDTH, OUTPUTS)

    def forward(self, x: Tensor) -> Tensor:
        y = self.attention(x, x, x)[0].tanh()
        return self.head(self.attention(y[:, :1], y, y)[0].tanh().mean(1))


class Unbatched(nn.Module):
    """Attends in one example after the other, without a dimension for the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2)
        self.head = nn.Linear(WIDTH, OUTPUTS)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.stack([self.attention(row, row, row)[0] for row in x]).tanh().mean(1))


class Own(nn.MultiheadAttention):
    """Torch's in name and parameters, but computes something else."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = nn.functional.linear(x, self.in_proj_weight, self.in_proj_bias).chunk(3, -1)
        return self.out_proj((q * k).tanh() + v)


class WithOwn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.head = Own(WIDTH, 2), nn.Linear(WIDTH, OUTPUTS)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.attention(x).tanh().mean(1))


class Encoder(nn.Module):
    """Two layers, of rows whose last words may be padding, over which the mean is taken all the same."""

    def __init__(self, layers: int = 1, batch_first: bool = True, padding: bool = False) -> None:
        super().__init__()
        self.padding, self.batch_first = padding, batch_first
        layer = nn.TransformerEncoderLayer(WIDTH, 2, dim_feedforward=5, dropout=0.1, batch_first=batch_first)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=batch_first)
        self.head = nn.Linear(WIDTH, OUTPUTS)

    def forward(self, x: Tensor) -> Tensor:
        hidden = None
        if self.padding:
            hidden = torch.arange(x.shape[1]) >= 2 + (x[:, :1, 0] > 0).long()
        made = self.layers(x if self.batch_first else x.transpose(0, 1), src_key_padding_mask=hidden)
        return self.head(made.tanh().mean(int(self.batch_first)))


class Decoder(nn.Module):
    """A sentence to itself, causally, and then to another."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerDecoderLayer(WIDTH, 2, dim_feedforward=5, dropout=0.1, batch_first=True)
        self.head = nn.Linear(WIDTH, OUTPUTS)

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(2, dtype=x.dtype)
        made = self.layer(x[:, :2], x[:, 2:].sin(), tgt_mask=mask, tgt_is_causal=True)
        return self.head(made.tanh().mean(1))


ATTENDING: dict[str, dict] = {
    "rows first": {"batch_first": True},
    "words first": {},
    "no bias, no weights asked for": {"bias": False, "weights": False},
    "masks": {"batch_first": True, "mask": "bool", "padding": True},
    "masks, words first": {"mask": "float", "padding": True, "weights": False},
    "a mask for each head": {"mask": "each"},
    "to another place": {"across": True, "batch_first": True, "padding": True},
    "to another place, words first": {"across": True, "weights": False, "mask": "float"},
    "separate weights": {"across": True, "kdim": 2, "vdim": 3},
    "rows of its own": {"add_bias_kv": True, "add_zero_attn": True, "batch_first": True, "mask": "bool"},
    "separate weights, rows of its own": {"across": True, "kdim": 3, "bias": False, "add_bias_kv": True},
}
