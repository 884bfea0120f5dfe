"""``VOGN`` as an optimiser."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from temperance.core.errors import ArgumentError, NetworkError
from temperance.inference.curvature.layers import Layer, layer_of
from temperance.model.theta import Entry
from temperance.run.optim.natural import Group, NaturalOptimizer


@dataclass
class _Pass:
    """One forward pass: its rows, and for each layer the inputs and the gradients at the outputs, call by call."""

    rows: int
    inputs: dict[str, list[Tensor]] = field(default_factory=dict)
    gradients: dict[str, list[Tensor | None]] = field(default_factory=dict)


class VOGN(NaturalOptimizer):
    """Variational online Gauss–Newton in a loop of your own. It watches ``network``'s layers for the squares of the
    gradients of single examples, ĥ = (1/B) Σ_i g_i², which stand for the Gauss–Newton matrix's diagonal:

        ḡ ← β₁ ḡ + (1 − β₁) g,   h ← β₂ h + (1 − β₂) ĥ,   m ← m − ℓ (ḡ / (1 − β₁ᵗ) + δ m) / (h + δ),

    with g taken at a draw of q = N(m, T / (N (h + δ))). (:class:`temperance.VOGN`, under ``fit``, can also draw labels
    from the model itself, which gives the Gauss–Newton matrix exactly on average.) The loss must be the *mean* over
    the batch; micro-batches of equal size, with their losses divided by their number, add up to one large batch.

    Args:
        network: a network of linear, convolution, embedding and norm layers; all its trainable parameters are learned.
        lr: ℓ, a share of a Newton step.
        num_data, betas, initial_hessian, weight_decay, temperature, clip, samples, seed: as for :class:`IVON`.

    >>> net = torch.nn.Linear(1, 1)
    >>> optimizer = VOGN(net, lr=0.1, num_data=100, weight_decay=1 / 100)
    >>> for _ in range(3):
    ...     optimizer.zero_grad()
    ...     with optimizer.perturbed():
    ...         (net(torch.ones(5, 1)) - 1).square().mean().backward()
    ...     optimizer.step()
    >>> optimizer.state[net.weight]["hessian"].shape
    torch.Size([1, 1])
    """

    def __init__(
        self,
        network: nn.Module,
        lr: float,
        num_data: int,
        betas: tuple[float, float] = (0.9, 0.999),
        initial_hessian: float = 1.0,
        weight_decay: float = 1e-4,
        temperature: float = 1.0,
        clip: float | None = None,
        samples: int = 1,
        seed: int = 0,
    ) -> None:
        if not isinstance(network, nn.Module):
            raise ArgumentError(f"`network` must be a module, whose layers VOGN watches; got {type(network).__name__}.")
        self._look_at(network)
        params = [p for p in network.parameters() if p.requires_grad]
        super().__init__(params, lr, num_data, betas, initial_hessian, weight_decay, temperature, clip, samples, seed)

    def _look_at(self, network: nn.Module) -> None:
        self._network = network
        self._layers = _layers_of(network)
        self._names = {id(p): name for name, p in network.named_parameters() if p.requires_grad}
        self._passes: list[_Pass] = []
        self._hooks: list[Any] = []
        self._alone = False
        self._verified = False

    def _forget(self) -> None:
        super()._forget()
        self._squares: dict[str, Tensor] = {}
        self._rows = 0

    def __getstate__(self) -> dict[str, Any]:
        """Copies come with a copy of the network."""
        return {**super().__getstate__(), "_network": self._network}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """See :class:`NaturalOptimizer`."""
        super().__setstate__(state)
        if "_network" in state:
            self._look_at(state["_network"])

    # ------------------------------------------------------------------ watching, inside a block only

    def _begin_pass(self, network: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._passes.append(_Pass(_rows_of((args, kwargs))))

    def _watch(self, layer: Layer) -> Any:
        def catch(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            if not self._passes or not isinstance(output, Tensor) or not output.requires_grad:
                return
            here = self._passes[-1]
            given = args[0] if args else next(iter(kwargs.values()))
            here.inputs.setdefault(layer.name, []).append(given.detach())
            found = here.gradients.setdefault(layer.name, [])
            place = len(found)
            found.append(None)

            def keep(gradient: Tensor) -> None:
                found[place] = gradient.detach()

            output.register_hook(keep)

        return catch

    def _begin(self) -> None:
        self._passes = []
        grads = [p.grad for group in self.param_groups for p in group["params"]]
        # Whether the block's gradients will be there alone, to be compared with.
        self._alone = not self._verified and all(grad is None or not bool(grad.any()) for grad in grads)
        self._hooks = [self._network.register_forward_pre_hook(self._begin_pass, with_kwargs=True)]
        for layer in self._layers:
            self._hooks.append(layer.module.register_forward_hook(self._watch(layer), with_kwargs=True))

    def _abandon(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._passes, self._hooks = [], []

    @torch.no_grad()
    def _end(self, noises: list[list[Tensor]]) -> None:
        passes = [here for here in self._passes if any(g is not None for gs in here.gradients.values() for g in gs)]
        self._abandon()
        verify = self._alone and len(passes) == 1
        for here in passes:
            for layer in self._layers:
                self._add(layer, here, verify)
            self._rows += here.rows
        self._verified = self._verified or verify

    def _add(self, layer: Layer, here: _Pass, verify: bool) -> None:
        gradients = here.gradients.get(layer.name, [])
        pairs = [(a, g) for a, g in zip(here.inputs.get(layer.name, []), gradients, strict=True) if g is not None]
        if not pairs:
            return
        kind = next(layer.module.parameters(recurse=False)).dtype  # autocast may have run it in another
        inputs = [a.to(kind) if a.is_floating_point() else a for a, _ in pairs]
        found = [g.to(kind) for _, g in pairs]
        if verify:
            self._verify(layer, inputs, found, here.rows)
        squares = layer.squares(inputs, found, here.rows)
        known = self._squares.get(layer.name)
        self._squares[layer.name] = squares if known is None else known + squares

    def _verify(self, layer: Layer, inputs: list[Tensor], found: list[Tensor], rows: int) -> None:
        """The first time: gradients of single examples must add up to the gradient that autograd found."""
        made = layer.jacobian(inputs, found, rows).sum(0)
        parameters = dict(layer.module.named_parameters(recurse=False))
        true = torch.cat([parameters[leaf].grad.flatten() for leaf in layer.entries])  # type: ignore[union-attr]
        if float((made - true).abs().max()) > 0.05 * float(true.abs().max()) + 1e-12:
            raise NetworkError(
                f"VOGN cannot see the gradients of single examples in layer {layer.name!r}: its weight is used "
                "elsewhere too, or its batch is in another dimension. Use IVON."
            )

    # ------------------------------------------------------------------ a step

    def _curvature(self, p: Tensor, gradient: Tensor, noise: Tensor, root: Tensor, factor: float) -> Tensor:
        name = self._names[id(p)]
        for layer in self._layers:
            at = 0
            for entry in layer.entries.values():
                if entry.name == name and layer.name in self._squares:
                    part = self._squares[layer.name][at : at + entry.size].view(p.shape)
                    # Rows hold ∂ℓ_i / B (all rows of all draws counted): B Σ (∂ℓ_i / B)² is the mean of squares.
                    return part * (self._rows / self.samples * factor**2 / self.samples)
                at += entry.size
        if bool(gradient.any()):
            raise NetworkError(
                f"VOGN has a gradient of {name!r} but has not seen its layer being called: the weight is used by some "
                "other function. Use IVON."
            )
        return torch.zeros_like(p)

    def _learn(self, hessian: Tensor, estimate: Tensor, total: Tensor, beta: float) -> None:
        hessian.lerp_(estimate, 1 - beta)

    def _rate(self, group: Group) -> float:
        return float(group["lr"])


def _rows_of(value: Any) -> int:
    """The first dimension of the first tensor in what a network was given."""
    if isinstance(value, Tensor):
        return value.shape[0]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for entry in value:
            found = _rows_of(entry)
            if found:
                return found
    return 0


def _layers_of(network: nn.Module) -> list[Layer]:
    found: list[Layer] = []
    seen: dict[int, str] = {}
    for prefix, module in network.named_modules():
        own: dict[str, Entry] = {}
        for leaf, p in module.named_parameters(recurse=False):
            if not p.requires_grad:
                continue
            name = f"{prefix}.{leaf}" if prefix else leaf
            if id(p) in seen:
                raise NetworkError(f"VOGN cannot learn tied weights: {name!r} is {seen[id(p)]!r} too. Use IVON.")
            seen[id(p)] = name
            own[leaf] = Entry(name, tuple(p.shape), 0)
        if not own:
            continue
        batch_norm = isinstance(module, nn.modules.batchnorm._BatchNorm)
        layer = None if batch_norm else layer_of(prefix, module, own)
        if layer is None:
            raise NetworkError(
                f"VOGN has no rule for gradients of single examples in {type(module).__name__} "
                f"({prefix or 'the network'}); use IVON."
            )
        found.append(layer)
    if not found:
        raise NetworkError("`network` must have trainable parameters; got none.")
    return found
