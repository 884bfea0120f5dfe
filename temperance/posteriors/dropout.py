"""Dropout as a distribution over functions: masks that a number decides, the same for every row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from temperance.core.checks import check_finite, check_vector
from temperance.core.errors import ArgumentError
from temperance.core.fields import check_fields
from temperance.core.seeds import derive_seed
from temperance.engine.native.noise import mix, signed
from temperance.engine.workspace import working_copy
from temperance.model.target import Target
from temperance.posteriors.base import Buffers, Centred, Nodes, WeightPosterior
from temperance.posteriors.gaussian import DEFAULT_DRAWS
from temperance.posteriors.nodes import Stratum

DROPOUTS = (nn.modules.dropout._DropoutNd,)
_CHANNELS = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.FeatureAlphaDropout)
_ALPHAS = (nn.AlphaDropout, nn.FeatureAlphaDropout)
_SATURATION = -1.7580993408473766  # what an alpha dropout puts in place of a unit: −scale · alpha of the SELU


class MaskedDropout(nn.Module):
    """A dropout that, in evaluation mode, drops what the buffer ``draw`` says, with the probability that the buffer
    ``rate`` says: one mask for all rows of a batch, and for all batches. ``draw`` = 0 drops nothing. In training mode
    it is the module that it stands for."""

    draw: Tensor
    rate: Tensor

    def __init__(self, dropout: nn.Module, number: int, device: torch.device | None = None) -> None:
        super().__init__()
        self.dropout = dropout
        self.number = number
        self.calls = 0
        self.register_buffer("draw", torch.zeros((), dtype=torch.int64, device=device), persistent=False)
        rate = torch.tensor(dropout.p, dtype=torch.float32, device=device)
        self.register_buffer("rate", rate, persistent=False)
        self.register_forward_pre_hook(_keep_in_graph)

    def forward(self, x: Tensor) -> Tensor:
        """``x`` with some of its units dropped."""
        if self.training:
            return self.dropout(x)
        self.calls += 1
        shape = (x.shape[1], *(1,) * (x.dim() - 2)) if isinstance(self.dropout, _CHANNELS) else x.shape[1:]
        keep = self._uniform(torch.Size(shape)) >= self.rate
        given, x = x.dtype, x.float() if x.dtype.itemsize < 4 else x  # 1 − p of two digits would be a bias
        rate = _as_dtype(self.rate, x.dtype)
        kept = (1 - rate).clamp(min=torch.finfo(x.dtype).tiny)  # where it is 0, nothing is kept
        off = self.draw == 0
        if isinstance(self.dropout, _ALPHAS):
            scale = (kept * (1 + (1 - kept) * _SATURATION**2)) ** -0.5
            scale = torch.where(self.rate < 1, scale, 0.0)
            dropped = scale * (torch.where(keep, x, _SATURATION) - (1 - kept) * _SATURATION)
        else:
            dropped = torch.where(keep, x / kept, 0.0)
        return _as_dtype(torch.where(off, x, dropped), given)

    def _uniform(self, shape: torch.Size) -> Tensor:
        """Numbers in [0, 1) that depend on the draw, on the module, on its call in this pass and on the place."""
        low = (self.draw & 0xFFFFFFFF).to(torch.int32)
        high = (self.draw >> 32).to(torch.int32)
        key = mix(mix(high + signed(0x9E3779B9)) ^ low)
        key = mix(key + signed((self.number * 0x85EBCA6B + self.calls * 0xC2B2AE35) & 0xFFFFFFFF))
        places = torch.arange(shape.numel(), dtype=torch.int32, device=self.draw.device)
        bits = (mix(places + key) & 0x7FFFFFFF) >> 7  # 24, which a float holds: none is rounded to 1
        return (bits.float() * 2.0**-24).reshape(shape)


def _as_dtype(value: Tensor, dtype: torch.dtype) -> Tensor:
    """``value.to(dtype)`` where that does anything: an export checks even what does not, and cannot while batched."""
    return value if value.dtype == dtype else value.to(dtype)


def _keep_in_graph(module: nn.Module, args: Any) -> None:
    """A hook that does nothing: modules with hooks are not skipped by the fused paths of torch's transformers."""


def masked(network: nn.Module) -> nn.Module:
    """A copy of ``network`` with each dropout replaced by a :class:`MaskedDropout`."""
    made = working_copy(network, {name for name, p in network.named_parameters() if p.requires_grad})
    stand_ins: dict[int, MaskedDropout] = {}
    device = next((p.device for p in network.parameters()), None)
    for name in _modules(made, every=True):
        prefix, _, leaf = name.rpartition(".")
        owner = made.get_submodule(prefix)
        module = getattr(owner, leaf)
        if id(module) not in stand_ins:
            stand_ins[id(module)] = MaskedDropout(module, len(stand_ins), device)
        setattr(owner, leaf, stand_ins[id(module)])
    made.register_forward_pre_hook(_Restart(list(stand_ins.values())))
    made.train(network.training)
    return made


def choose_masks(network: nn.Module, draw: int) -> None:
    """Have every dropout of a ``masked`` network drop what draw number ``draw`` says."""
    for module in network.modules():
        if isinstance(module, MaskedDropout):
            module.draw.fill_(draw)


def unmasked(network: nn.Module) -> nn.Module:
    """``network`` with the dropouts that :func:`masked` has replaced, in place."""
    for name, module in list(network.named_modules(remove_duplicate=False)):
        if isinstance(module, MaskedDropout):
            prefix, _, leaf = name.rpartition(".")
            setattr(network.get_submodule(prefix), leaf, module.dropout)
    for key, hook in list(network._forward_pre_hooks.items()):
        if isinstance(hook, _Restart):
            del network._forward_pre_hooks[key]
    return network


class _Restart:
    """Before a pass of the whole network: calls are counted anew."""

    def __init__(self, modules: list[MaskedDropout]) -> None:
        self.modules = modules

    def __call__(self, network: nn.Module, args: Any) -> None:
        for module in self.modules:
            module.calls = 0


def dropout_rates(network: nn.Module) -> dict[str, float]:
    """How often each dropout inside ``network`` drops a unit."""
    return {name: float(network.get_submodule(name).p) for name in _modules(network)}  # type: ignore[arg-type]


def dropout_names(network: nn.Module) -> list[str]:
    """Names of the modules inside ``network`` that drop units."""
    return [name for name, rate in dropout_rates(network).items() if rate > 0]


def at_rates(network: nn.Module, rates: Mapping[str, float]) -> nn.Module:
    """A copy of ``network`` whose dropouts drop units with these probabilities, by name."""
    made = working_copy(network, {name for name, p in network.named_parameters() if p.requires_grad})
    for name, rate in rates.items():
        made.get_submodule(name).p = rate  # type: ignore[assignment]
    return made.train(network.training)


def _modules(network: nn.Module, every: bool = False) -> list[str]:
    """Names of the dropouts inside ``network``; with ``every``, all names of one that has several."""
    found = network.named_modules(remove_duplicate=not every)
    return [name for name, module in found if name and isinstance(module, DROPOUTS)]


@dataclass(frozen=True, eq=False, repr=False)
class DropoutPosterior(WeightPosterior, Centred):
    """One θ, and a distribution over which units are dropped in the modules ``dropouts``: a draw is one set of masks
    for the whole function, so that rows of one draw belong together. With probability ``whole`` nothing is dropped.
    ``rates`` are the probabilities with which the modules drop units, where they are not those of the network."""

    theta: Tensor
    dropouts: tuple[str, ...]
    buffers: Buffers = field(default_factory=dict)
    whole: float = 0.0
    rates: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.rates is not None and not (
            len(self.rates) == len(self.dropouts) and all(0 <= rate <= 1 for rate in self.rates)
        ):
            raise ArgumentError(f"`rates` must be a probability for each of `dropouts`; got {self.rates}.")
        if not 0 <= self.whole <= 1:
            raise ArgumentError(f"`whole` must be a probability; got {self.whole}.")
        check_vector(self.theta, "theta")
        check_finite(self.theta, "the weights of a DropoutPosterior")

    @property
    def size(self) -> int:
        """P."""
        return len(self.theta)

    @property
    def mean(self) -> Tensor:  # type: ignore[override]
        """θ, with nothing dropped."""
        return self.theta

    def retarget(self, target: Target) -> Target:
        """The target with a network whose masks can be chosen."""
        if any(isinstance(module, MaskedDropout) for module in target.network.modules()):
            return target
        told = [f"{name}.{what}" for name in self.dropouts for what in ("draw", "rate")]
        return target.with_network(masked(target.network), told)

    def nodes(self, n: int | None = None, seed: int = 0) -> Nodes:
        """``n`` sets of masks (30 unless told), and before them, where it counts, the network with nothing dropped."""
        count, first = DEFAULT_DRAWS if n is None else n, int(self.whole > 0)

        def fetch(start: int, stop: int) -> tuple[Tensor, Buffers]:
            # 62 bits, and never 0, which drops nothing
            places = range(start - first, stop - first)
            draws = torch.tensor([0 if k < 0 else derive_seed(seed, "dropout", k) % 2**62 + 1 for k in places])
            draws = draws.to(self.theta.device)
            buffers = {name: value.expand(len(draws), *value.shape) for name, value in self.buffers.items()}
            for name, rate in zip(self.dropouts, self.rates or (), strict=self.rates is not None):
                buffers[f"{name}.rate"] = torch.full((len(draws),), rate, dtype=torch.float32, device=draws.device)
            return self.theta.expand(len(draws), -1), {**buffers, **{f"{name}.draw": draws for name in self.dropouts}}

        if self.whole == 1.0:
            return Nodes(torch.ones(1, dtype=torch.float64), fetch, (Stratum(1, drawn=False),))
        weights = torch.full((count,), (1.0 - self.whole) / count, dtype=torch.float64)
        if not first:
            return Nodes(weights, fetch)
        weights = torch.cat([torch.tensor([self.whole], dtype=torch.float64), weights])
        return Nodes(weights, fetch, (Stratum(1, drawn=False), Stratum(count)))

    def _sample(self, n: int, rng: torch.Generator) -> Tensor:
        return self.theta.expand(n, -1).clone()
