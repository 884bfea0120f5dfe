"""``nn.MultiheadAttention`` as maps that can be watched, and the rule for the gradients of its parameters.

Torch computes attention in one function that takes the weights and calls no module, so no hook sees the inputs of the
projections or the gradients at their outputs. While :meth:`Spelled.installed` lasts, the module computes the same out
of linear maps, rows of the batch first, each a module of its own: query, key and value, the rows ``bias_k`` and
``bias_v``, and the module's own ``out_proj``.

Query, key and value have a Kronecker pair each, also where one packed weight holds all three: their inputs differ as
soon as attention looks elsewhere than at itself, in number too, and what KFAC says of a weight should not depend on
who calls it. (One pair of thrice the width, where it looks at itself, has nine times the eigenvectors to find and was
measured to be nearer to the true block by a few per cent only.) The gradients of single examples are those of the whole
module, so a dense block of it is exact.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from temperance.inference.curvature.layers import Layer, LinearLayer, Matrix
from temperance.model.theta import Entry

_ROLES = ("query", "key", "value")
_ROWS = {"key row": "bias_k", "value row": "bias_v"}


class _Map(nn.Module):
    """x ↦ W x + b with a W and b of another module, asked for anew at each call; or the row b alone."""

    def __init__(self, values: Callable[[], tuple[Tensor | None, Tensor | None]]) -> None:
        super().__init__()
        self.values = values

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self.values()
        if weight is not None:
            return F.linear(x, weight, bias)
        assert bias is not None
        return bias.expand(x.shape)


class Spelled:
    """An attention, and the maps that stand for its projections while it is installed."""

    def __init__(self, module: nn.MultiheadAttention) -> None:
        self.module = module
        self.maps = {role: _Map(lambda k=k: self._projection(k)) for k, role in enumerate(_ROLES)}  # type: ignore[misc]
        if module.bias_k is not None:
            for role, name in _ROWS.items():
                self.maps[role] = _Map(lambda name=name: (None, getattr(module, name)))  # type: ignore[misc]

    def _projection(self, k: int) -> tuple[Tensor, Tensor | None]:
        module, bias = self.module, self.module.in_proj_bias
        if module.in_proj_weight is not None:
            weight = module.in_proj_weight.chunk(3)[k]
        else:
            weight = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)[k]
        return weight, None if bias is None else bias.chunk(3)[k]

    def concerns(self, layer: Layer) -> bool:
        """Whether a layer, or the matrix of one, is seen only while this is installed."""
        return layer.module in (self.module, self.module.out_proj, *self.maps.values())

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """While this lasts, the module is computed by its maps."""
        self.module.forward = self.forward  # type: ignore[method-assign]
        try:
            yield
        finally:
            del self.module.forward  # the class's own comes back

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """As the module's own."""
        module = self.module
        if query.dim() != 3 or query.is_nested or (is_causal and attn_mask is None):
            # One example without a batch, which no rule speaks for, or an error that torch words itself.
            return nn.MultiheadAttention.forward(
                module,
                query,
                key,
                value,
                key_padding_mask=key_padding_mask,
                need_weights=need_weights,
                attn_mask=attn_mask,
                average_attn_weights=average_attn_weights,
                is_causal=is_causal,
            )
        if not module.batch_first:
            query, key, value = (t.transpose(0, 1) for t in (query, key, value))
        q, k, v = (self.maps[role](x) for role, x in zip(_ROLES, (query, key, value), strict=True))
        if module.bias_k is not None:
            k, v = (torch.cat([t, self.maps[role](t[:, :1])], 1) for t, role in zip((k, v), _ROWS, strict=True))
        if module.add_zero_attn:
            k, v = (F.pad(t, (0, 0, 0, 1)) for t in (k, v))
        # Torch forgets the mask and tells its kernel "causal" where nothing else needs the mask.
        causal = is_causal and key_padding_mask is None and not need_weights
        mask = _merged(None if causal else attn_mask, key_padding_mask, module.num_heads, k.shape[1], q)
        q, k, v = (t.unflatten(-1, (module.num_heads, -1)).transpose(1, 2) for t in (q, k, v))  # B × H × places × d
        dropout = module.dropout if module.training else 0.0
        weights = None
        if need_weights:
            scores = q @ k.mT / math.sqrt(module.head_dim)
            weights = F.dropout((scores if mask is None else scores + mask).softmax(-1), dropout)
            mixed = weights @ v
            weights = weights.mean(1) if average_attn_weights else weights
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, mask, dropout, causal)
        outputs = module.out_proj(mixed.transpose(1, 2).flatten(2))
        return outputs if module.batch_first else outputs.transpose(0, 1), weights


def _merged(attention: Tensor | None, padding: Tensor | None, heads: int, keys: int, like: Tensor) -> Tensor | None:
    """Both masks as numbers to add to the scores, of a shape that spreads to B × H × queries × keys; keys that the
    module adds itself come last, and no mask hides them."""
    made: Tensor | None = None
    if attention is not None:
        made = _added(attention, keys, like)
        made = made if made.dim() == 2 else made.unflatten(0, (-1, heads))
    if padding is not None:
        hidden = _added(padding, keys, like)[:, None, None]
        made = hidden if made is None else made + hidden
    return made


def _added(mask: Tensor, keys: int, like: Tensor) -> Tensor:
    if mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape, dtype=like.dtype, device=mask.device).masked_fill(mask, -math.inf)
    return F.pad(mask, (0, keys - mask.shape[-1]))


def spelled(module: nn.Module) -> Spelled | None:
    """Of an attention that computes as torch's own does; ``None`` of all others."""
    if not isinstance(module, nn.MultiheadAttention) or "forward" in vars(module):
        return None
    own = type(module).forward is nn.MultiheadAttention.forward and type(module.out_proj).forward is nn.Linear.forward
    return Spelled(module) if own else None


class _Part(LinearLayer):
    """One map of an attention: every ``turns``-th tensor of those caught is its own, from number ``turn`` on."""

    def __init__(self, name: str, module: nn.Module, entries: dict[str, Entry]) -> None:
        super().__init__(name, module, entries)
        self.turn, self.turns = 0, 1

    def input_rows(self, inputs: Sequence[Tensor], rows: int) -> Tensor:
        """See :class:`Matrix`."""
        return super().input_rows(inputs[self.turn :: self.turns], rows)

    def output_rows(self, gradients: Sequence[Tensor], rows: int) -> Tensor:
        """See :class:`Matrix`."""
        return super().output_rows(gradients[self.turn :: self.turns], rows)


class AttentionLayer(Layer):
    """The parameters of ``nn.MultiheadAttention`` itself (``out_proj`` is a linear layer): a matrix for each map."""

    def __init__(self, name: str, attention: Spelled, entries: dict[str, Entry]) -> None:
        super().__init__(name, attention.module, dict(sorted(entries.items(), key=lambda item: item[1].start)))
        found = ((role, _shares(attention.module, role, entries)) for role in attention.maps)
        named = {role: f"{name}.{role}" if name else role for role in attention.maps}
        self.parts = [_Part(named[role], attention.maps[role], own) for role, own in found if own]
        for turn, part in enumerate(self.parts):
            part.turn, part.turns = turn, len(self.parts)

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        """See :class:`Layer`."""
        return tuple(self.parts)

    @property
    def watched(self) -> tuple[nn.Module, ...]:
        """See :class:`Layer`."""
        return tuple(part.module for part in self.parts)

    def jacobian(self, inputs: Sequence[Tensor], gradients: Sequence[Tensor], rows: int) -> Tensor:
        """Those of the maps."""
        return self._in_order([part.jacobian(inputs, gradients, rows) for part in self.parts])

    def squares(self, inputs: Sequence[Tensor], gradients: Sequence[Tensor], rows: int) -> Tensor:
        """Those of the maps."""
        return self._in_order([part.squares(inputs, gradients, rows) for part in self.parts])

    def _in_order(self, made: list[Tensor]) -> Tensor:
        """From map after map (weight, bias) to the order of θ, where a packed tensor has a share of each."""
        pieces: list[tuple[int, Tensor]] = []
        for part, value in zip(self.parts, made, strict=True):
            sizes = [stop - start for start, stop in part.places]
            pieces += zip((start for start, _ in part.places), value.split(sizes, dim=-1), strict=True)
        return torch.cat([value for _, value in sorted(pieces, key=lambda piece: piece[0])], dim=-1)


def _shares(module: nn.MultiheadAttention, role: str, entries: dict[str, Entry]) -> dict[str, Entry]:
    """Where in θ the weight and bias of one map are, of those that are random."""
    width = module.embed_dim
    if role in _ROWS:
        row = entries.get(_ROWS[role])
        return {} if row is None else {"bias": replace(row, shape=(width,))}
    made: dict[str, Entry] = {}
    k = _ROLES.index(role)
    if (packed := entries.get("in_proj_weight")) is not None:
        made["weight"] = replace(packed, shape=(width, width), start=packed.start + k * width**2)
    elif (weight := entries.get(f"{role[0]}_proj_weight")) is not None:
        made["weight"] = weight
    if (bias := entries.get("in_proj_bias")) is not None:
        made["bias"] = replace(bias, shape=(width,), start=bias.start + k * width)
    return made
