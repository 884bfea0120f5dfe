"""The linearised network as a Gaussian process, conditioned on some rows of the data."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from temperance.data.sources import Inputs
from temperance.errors import ArgumentError
from temperance.linalg.blocks import DiagonalBlock
from temperance.linalg.precision import PosteriorCovariance
from temperance.posteriors import EvidenceTerms, LaplacePosterior, Process
from temperance.predict.linear import LinearLaw
from temperance.seeds import generator
from temperance.target import Target

_LIMIT = 2**29  # numbers of the M rows' Jacobian


class KernelLaw:
    """Outputs under a :class:`Process`: mean f(x; θ*), covariance

        k(x, x) − k(x, X) S (I + Sᵀ k(X, X) S)⁻¹ Sᵀ k(X, x),

    S the block diagonal of the output Hessians' roots: no Hessian need be invertible. With X all the data this is the
    parametric predictive of the dense Gauss–Newton matrix.
    """

    def __init__(self, target: Target, posterior: Process, x: Inputs, batch_size: int = 256) -> None:
        self.target, self.posterior = target, posterior
        size = target.layout.network_size
        blank = DiagonalBlock(((0, size),), torch.zeros_like(posterior.theta[:size]))
        terms = EvidenceTerms(0.0, 0.0, torch.zeros_like(posterior.theta), 0.0, 0.0, 0.0)
        prior = LaplacePosterior(
            posterior.theta, PosteriorCovariance((blank,), posterior.prior_precision), terms, dict(posterior.buffers)
        )
        self.prior = LinearLaw(target, prior, x)
        self.num_outputs = self.prior.num_outputs
        rows, outputs, _ = posterior.roots.shape
        if rows * outputs * size > _LIMIT:
            raise ArgumentError(
                f"`size`: the Jacobian of {rows} rows with {outputs} outputs and {size:,} parameters needs "
                f"{rows * outputs * size * 4 / 2**30:.1f} GiB; condition on fewer rows."
            )
        _, jacobian = self.prior.halves(posterior.inputs, batch_size)
        # Sᵀ J τ^-½, (M·K) × P
        stacked = jacobian.view(rows, outputs, -1)
        self.seen = torch.einsum("mck,mcp->mkp", posterior.roots.to(stacked), stacked).flatten(0, 1)
        gram = (self.seen @ self.seen.mT).double()
        self.lower = torch.linalg.cholesky(gram + torch.eye(len(gram), dtype=torch.float64, device=gram.device))

    def _explained(self, rows: Tensor) -> Tensor:
        """L⁻¹ Sᵀ k(X, x), (M·K) × n, for whitened Jacobian rows n × P."""
        return torch.linalg.solve_triangular(self.lower, (self.seen @ rows.mT).double(), upper=False)

    def moments(self, x: Inputs, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """See :class:`LinearLaw`."""
        for _, part in self.prior.chunks(x, batch_size):
            outputs, rows = self.prior.halves(part, batch_size)
            classes = outputs.shape[1]
            blocks = rows.view(len(outputs), classes, -1)
            known = self._explained(rows).view(-1, len(outputs), classes)
            covariance = (blocks @ blocks.mT).double() - torch.einsum("inc,ind->ncd", known, known)
            yield outputs, (self.posterior.temperature * covariance).to(outputs.dtype)

    def halves(self, x: Inputs, batch_size: int) -> tuple[Tensor, Tensor]:
        """Outputs, and a root of the joint covariance."""
        outputs, rows = self.prior.halves(x, batch_size)
        known = self._explained(rows)
        joint = self.posterior.temperature * ((rows @ rows.mT).double() - known.mT @ known)
        values, vectors = torch.linalg.eigh(joint)
        return outputs, (vectors * values.clamp(min=0).sqrt()).to(outputs.dtype)

    def function_draws(self, draws: int, seed: int) -> list[Tensor]:
        """Displacements of θ under the posterior, by Matheron's rule: a draw δ of the prior, corrected by what the seen
        rows say of it."""
        root_t = math.sqrt(self.posterior.temperature)
        size = self.target.layout.network_size
        tau = self.posterior.prior_precision[:size]
        made = []
        for k in range(draws):
            rng = generator(seed, "draw", k)
            white = torch.randn(size, generator=rng, dtype=tau.dtype).to(tau.device)
            noise = torch.randn(len(self.seen), generator=rng, dtype=torch.float64).to(tau.device)
            residual = (self.seen @ white).double() + noise
            solved = torch.cholesky_solve(residual.unsqueeze(1), self.lower).squeeze(1)
            delta = torch.zeros_like(self.posterior.theta)
            delta[:size] = root_t * (white - self.seen.mT @ solved.to(white.dtype)) * tau.rsqrt()
            made.append(delta)
        return made

    def functions(self, x: Inputs, deltas: list[Tensor], batch_size: int) -> Iterator[tuple[slice, Tensor]]:
        """See :class:`LinearLaw`."""
        return self.prior.functions(x, deltas, batch_size)

    def learned_moments(self) -> tuple[Tensor, Tensor]:
        """What the likelihood learns stays at its mode."""
        mean = self.posterior.theta[self.target.layout.network_size :]
        return mean, torch.zeros(len(mean), len(mean), dtype=mean.dtype, device=mean.device)
