"""``NonCentred``: a network whose weights are scale · e^u · z, so that learned scales make no funnel."""

from __future__ import annotations

from typing import Any, get_args

import torch
from torch import Tensor, nn

from temperance.core.checks import check_choice, check_instance, shown
from temperance.core.errors import ArgumentError, NetworkError
from temperance.engine.outputs import arguments, call_with
from temperance.engine.workspace import reinitialised, working_copy
from temperance.model.priors.base import FixedScale, check_scale, resolve_scale
from temperance.model.priors.hyper import HyperPrior, LogNormal
from temperance.model.priors.learned import Each, groups_of
from temperance.model.theta import Layout, selected


class NonCentred(nn.Module):
    """``network`` in other coordinates: a number v_g for each group g of weights, z in the place of each weight, and

        w_i = ``scale``_i · e^{u_g} · z_i,     u_g = F⁻¹(Φ(v_g)),     F the distribution function of ``hyper``.

    Under ``GaussianPrior(1.0)`` for all z and v, w given u is N(0, (scale e^u)²) and u has its hyper-prior: exactly the
    model of ``GaussianPrior(Learned(scale, hyper, each))``. There, where data say little about a group, small scales go
    with small weights, a funnel that no single step fits; here z and v are independent before data. Where data say much
    the other form is the rounder one. Every method works, those that look for a mode too: in these coordinates it does
    not lie where the scales vanish, because the density of z knows nothing of the scale.

    The network starts where it was: at v = 0, with its own weights. Parameters are ``v`` and, after ``network.``, those
    of the weights' names; frozen ones, buffers and dropout stay as they are. At a temperature T other than one the two
    forms are different problems, as any change of coordinates makes them: here z and v are N(0, T) before data.

    Args:
        network: any ``nn.Module``; it is copied, frozen parameters are shared.
        hyper: ``LogNormal(spread)``, ``HalfCauchy(scale)`` or ``InverseGamma(shape, rate)``.
        scale: a number, numbers by the names of layers, or ``FanIn``.
        each: what has a scale of its own: the whole network, each layer (module), or each tensor.

    >>> import temperance as tp
    >>> network = NonCentred(tp.nn.MLP(4, [8], 3), tp.HalfCauchy(), tp.FanIn())
    >>> target = tp.Target(network, tp.Categorical(), tp.GaussianPrior(1.0))
    >>> target.layout["v"].shape
    (2,)
    """

    scales: Tensor
    landmarks: Tensor

    def __init__(
        self,
        network: nn.Module,
        hyper: HyperPrior | None = None,
        scale: FixedScale = 1.0,
        each: Each = "layer",
    ) -> None:
        super().__init__()
        if not isinstance(network, nn.Module):
            raise NetworkError(f"`network` must be a torch.nn.Module; got {shown(network)}.")
        self.hyper = LogNormal() if hyper is None else hyper
        check_instance(self.hyper, "hyper", HyperPrior, "a hyper-prior such as LogNormal(1.0)")
        if isinstance(scale, Tensor) and scale.numel() > 1:
            raise ArgumentError(
                "`scale` must be a number, numbers by names of layers, or FanIn(), for it is one number a tensor; got "
                f"a tensor of shape {tuple(scale.shape)}."
            )
        check_scale(scale)
        check_choice(each, "each", get_args(Each))
        self.names = tuple(name for name, _ in selected(network, None))
        layout = Layout.of(network, self.names)
        self.groups = tuple(groups_of(self.names, each))
        self.network = working_copy(network, self.names)
        of_all = torch.as_tensor(resolve_scale(scale, layout, layout.network_entries), dtype=torch.float64)
        of_all = of_all.expand(layout.size)
        like = dict(self.network.named_parameters())[self.names[0]].detach()
        self.register_buffer("scales", of_all[[e.start for e in layout.entries]].to(like))
        # Predictions depend on the hyper-prior, too: kept beside θ, a run with another one is not mistaken for this.
        self.register_buffer("landmarks", self.hyper.of_normal(torch.tensor([-1.0, 0.0, 1.0]).double()).to(like))
        self.v = nn.Parameter(torch.zeros(max(self.groups) + 1, dtype=layout.dtype, device=like.device))
        self._adopt({name: p.detach().clone() for name, p in self.network.named_parameters()})

    def weights(self) -> dict[str, Tensor]:
        """The network's weights w, by name: those of z and v as they are now."""
        z = dict(self.network.named_parameters())
        factor = torch.exp(self.hyper.of_normal(self.v))
        places = enumerate(zip(self.names, self.groups, strict=True))
        return {name: z[name] * (self.scales[k] * factor[g]) for k, (name, g) in places}

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The network at these weights."""
        if kwargs and not args:
            args, kwargs = arguments(self.network, kwargs)
        return call_with(self.network, self.weights(), args, kwargs)

    def plain(self) -> nn.Module:
        """The network itself, a copy with the weights w."""
        made, found = working_copy(self.network, self.names), self.weights()
        with torch.no_grad():
            for name, parameter in made.named_parameters():
                if name in found:
                    parameter.copy_(found[name])
        return made

    def reset_parameters(self) -> None:
        """Weights as the network's own modules make them, at v = 0; what cannot reset itself keeps its z."""
        fresh = dict(reinitialised(self.network).named_parameters())
        self._adopt({name: fresh[name].detach() for name in self.names if not bool(fresh[name].isnan().any())})

    def _adopt(self, weights: dict[str, Tensor]) -> None:
        """v = 0, and z for these weights there."""
        middle = torch.exp(self.landmarks[1])
        z = dict(self.network.named_parameters())
        with torch.no_grad():
            self.v.zero_()
            for k, name in enumerate(self.names):
                if name in weights:
                    z[name].copy_(weights[name] / (self.scales[k] * middle))

    def extra_repr(self) -> str:
        """What it was made with."""
        return f"hyper={self.hyper!r}, {len(self.v)} scales"
