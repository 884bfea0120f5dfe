"""U(θ) and ∇U of many settings of θ over all data, in the precision that a Metropolis decision needs.

Samplers that accept or reject compare energies whose difference is of order one, while the energies themselves grow
with N. Terms are computed in the dtype of θ and added up in float64, so that nothing cancels.

Three ways give the same numbers to rounding: compiled C for small fully connected networks
(:mod:`temperance.engine.native.mlp`), all settings at once by ``vmap``, or one after the other, some rows at a time.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor, nn

from temperance.data.data import Batch
from temperance.data.sources import Inputs, first_tensor, map_tensors
from temperance.engine import outputs as forward
from temperance.engine.compiling import Compiled
from temperance.engine.native.mlp import NativeMLP
from temperance.engine.native.walk import NativeEnergy
from temperance.engine.workspace import Workspace
from temperance.model.likelihoods.base import Likelihood
from temperance.model.priors import BoundPrior

_ROWS_AT_ONCE = 2048  # of a network too large to be batched: bounds the memory of its activations


class OwnEnergies(nn.Module):
    """A network that is a density itself, and knows its energies at many θ without data, likelihood or prior."""

    @abstractmethod
    def own_energies(self) -> Energies:
        """What evaluates U(θ) and ∇U."""


class Energies:
    """The energy of one problem on one set of rows, ready to be evaluated again and again."""

    def __init__(
        self,
        workspace: Workspace,
        likelihood: Likelihood,
        prior: BoundPrior,
        likelihood_temperature: float,
        batch: Batch,
        compiled: bool = False,
    ) -> None:
        self.workspace, self.likelihood, self.prior = workspace, likelihood, prior
        self.likelihood_temperature = likelihood_temperature
        self.x, self.y, self.weights = batch.x, batch.y, batch.weights
        self.native: NativeEnergy | None = None
        if isinstance(batch.x, Tensor) and batch.weights is None:  # the kernels count each row once
            self.native = NativeMLP.of(
                workspace.network, workspace.layout, likelihood, prior, likelihood_temperature, batch.x, batch.y
            )
        rows = first_tensor(batch.x).shape[0]
        small = forward.small_enough(workspace.network, workspace.layout, rows, workspace.device)
        self.batched = self.native is None and small and workspace.can_batch()
        self._compiled = Compiled(self._of_data) if compiled and self.batched else None

    def serves(self, workspace: Workspace, likelihood: Likelihood, prior: BoundPrior, batch: Batch) -> bool:
        """Whether these are the energies of this problem on the rows of ``batch``."""
        same = self.workspace is workspace and self.likelihood is likelihood and self.prior is prior
        return same and self.x is batch.x and self.y is batch.y and self.weights is batch.weights

    def __call__(self, theta: Tensor, grad: Tensor | None = None) -> Tensor:
        """U of each row of θ (C × P) in float64; ∇U into ``grad`` (C × P) if it is given."""
        if self.native is not None:
            energy = torch.empty(len(theta), dtype=torch.float64)
            if grad is None:
                self.native.potentials(theta, energy)
            else:
                self.native.energies(theta, grad, energy)
            return energy
        self.workspace.set_training(False)
        together = self.batched and (len(theta) > 1 or self._compiled is not None)
        energy = self._all_at_once(theta, grad) if together else self._one_by_one(theta, grad)
        if grad is not None:
            self.prior.add_gradient(theta, grad, -1.0)
        return energy - self.prior.log_prob(theta, torch.float64)

    # ------------------------------------------------------------------ all settings at once

    def _total(self, leaves: dict[str, Tensor]) -> Tensor:
        layout = self.workspace.layout
        values = {e.name: leaves[e.name] for e in layout.network_entries}
        learned = {e.name: leaves[e.name] for e in layout.entries_of("likelihood")}
        outputs = forward.at_once(self.workspace.network, values, self.x, stacked_inputs=False)
        return self._negative_log_likelihood(self.likelihood.arrange(outputs, 2), self.y, learned, self.weights)

    def _negative_log_likelihood(
        self, outputs: Tensor, y: Tensor, learned: dict[str, Tensor], weights: Tensor | None
    ) -> Tensor:
        log_prob = self.likelihood.log_prob(outputs, y, learned)
        if weights is not None:
            log_prob = log_prob.double() * weights
        return -log_prob.sum(-1, dtype=torch.float64) / self.likelihood_temperature

    def _all_at_once(self, theta: Tensor, grad: Tensor | None) -> Tensor:
        if grad is None:
            with torch.no_grad():
                return self._total(self.workspace.layout.unflatten(theta))
        if self._compiled is not None:
            gradient, energy = self._compiled(theta)
            grad.copy_(gradient)
            return energy
        leaves = {name: v.detach().requires_grad_() for name, v in self.workspace.layout.unflatten(theta).items()}
        with torch.enable_grad():
            energy = self._total(leaves)
            gradients = torch.autograd.grad(energy.sum(), list(leaves.values()), materialize_grads=True)
        torch.cat([g.reshape(len(theta), -1) for g in gradients], dim=1, out=grad)
        return energy.detach()

    def _of_data(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Gradient and energy of the data as one function of θ: what is compiled."""

        def total(rows: Tensor) -> tuple[Tensor, Tensor]:
            energy = self._total(self.workspace.layout.unflatten(rows))
            return energy.sum(), energy

        return torch.func.grad(total, has_aux=True)(theta)

    # ------------------------------------------------------------------ one after the other

    def _one_by_one(self, theta: Tensor, grad: Tensor | None) -> Tensor:
        if grad is not None:
            grad.zero_()
        found = []
        for k in range(len(theta)):
            self.workspace.attach(theta[k], None if grad is None else grad[k])
            total = torch.zeros((), dtype=torch.float64, device=theta.device)
            with torch.set_grad_enabled(grad is not None):
                for x, y, weights in self._pieces():
                    outputs = self.likelihood.arrange(forward.call(self.workspace.network, x))
                    part = self._negative_log_likelihood(outputs, y, self.workspace.learned, weights)
                    if grad is not None:
                        part.backward()
                    total += part.detach()
            found.append(total)
        self.workspace.detach()
        return torch.stack(found)

    def _pieces(self) -> list[tuple[Inputs, Tensor, Tensor | None]]:
        rows, weights = self.y.shape[0], self.weights
        if rows <= _ROWS_AT_ONCE:
            return [(self.x, self.y, weights)]
        cuts = [slice(k, k + _ROWS_AT_ONCE) for k in range(0, rows, _ROWS_AT_ONCE)]
        inputs = [map_tensors(lambda t, cut=cut: t[cut], self.x) for cut in cuts]  # type: ignore[misc]
        shares = [None if weights is None else weights[cut] for cut in cuts]
        return list(zip(inputs, [self.y[cut] for cut in cuts], shares, strict=True))
