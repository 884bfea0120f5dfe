"""The linearised network as a Gaussian process, conditioned on some rows of the data."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from temperance.core.errors import ArgumentError, NumericalError
from temperance.core.seeds import generator
from temperance.data.sources import Inputs
from temperance.engine.engine import Engine
from temperance.linalg.assembled import PosteriorCovariance
from temperance.linalg.blocks import DiagonalBlock
from temperance.posteriors import EvidenceTerms, LaplacePosterior, Process
from temperance.predict.linear import LinearLaw

_LIMIT = 2**28  # numbers of the M rows' Jacobian, in float64
_NUMBERS = 2**24  # of the Jacobian of new rows


class KernelLaw:
    """Outputs under a :class:`Process`: mean f(x; θ*), covariance

        k(x, x) − k(x, X) S (I + Sᵀ k(X, X) S)⁻¹ Sᵀ k(X, x),

    S the block diagonal of the output Hessians' roots: no Hessian need be invertible. With X all the data this is the
    parametric predictive of the dense Gauss–Newton matrix.
    """

    def __init__(self, engine: Engine, posterior: Process, x: Inputs, batch_size: int = 256) -> None:
        self.engine, self.posterior = engine, posterior
        size = engine.layout.network_size
        blank = DiagonalBlock(((0, size),), torch.zeros_like(posterior.theta[:size]))
        terms = EvidenceTerms(0.0, 0.0, torch.zeros_like(posterior.theta), 0.0, 0.0, 0.0)
        prior = LaplacePosterior(
            posterior.theta, PosteriorCovariance((blank,), posterior.prior_precision), terms, dict(posterior.buffers)
        )
        self.prior = LinearLaw(engine, prior, x)
        self.num_outputs = self.prior.num_outputs
        rows, outputs, _ = posterior.roots.shape
        if rows * outputs * size > _LIMIT:
            raise ArgumentError(
                f"`size`: the Jacobian of {rows} rows with {outputs} outputs and {size:,} parameters needs "
                f"{rows * outputs * size * 8 / 2**30:.1f} GiB; condition on fewer rows."
            )
        # What is left of a variance is a small difference of large numbers: float64 from here on.
        stacked = self._halves(posterior.inputs, batch_size)[1].view(rows, outputs, -1)
        self.seen = torch.einsum("mck,mcp->mkp", posterior.roots.double(), stacked).flatten(0, 1)  # Sᵀ J τ^-½
        gram = self.seen @ self.seen.mT
        self.lower, info = torch.linalg.cholesky_ex(gram + torch.eye(len(gram), dtype=gram.dtype, device=gram.device))
        if int(info) != 0:
            raise NumericalError(
                "the kernel matrix of the rows that the process is conditioned on is not positive definite to "
                "rounding; use fewer rows (`size`), a network and data in float64, or Laplace(curvature=Dense())."
            )

    def traced(self, x: Inputs) -> nn.Module:
        """Not known: the rows it is conditioned on would have to be part of the graph."""
        raise ArgumentError(
            "a process over functions cannot be exported: it compares each input with the rows it was conditioned on. "
            "Fit Laplace(), whose artefact says nearly the same."
        )

    def _halves(self, x: Inputs, batch_size: int) -> tuple[Tensor, Tensor]:
        """Outputs, and whitened Jacobian rows in float64, some inputs at a time."""
        size = self.engine.layout.network_size
        step = max(1, min(batch_size, _NUMBERS // (self.num_outputs * size)))
        outputs, rows = self.prior.halves(x, step)
        return outputs, rows.double()

    def _explained(self, rows: Tensor) -> Tensor:
        """L⁻¹ Sᵀ k(X, x), (M·K) × n, for whitened Jacobian rows n × P."""
        return torch.linalg.solve_triangular(self.lower, self.seen @ rows.mT, upper=False)

    def moments(self, x: Inputs, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """See :class:`LinearLaw`."""
        step = max(1, min(batch_size, _NUMBERS // (self.num_outputs * self.engine.layout.network_size)))
        for _, part in self.prior.chunks(x, step):
            outputs, rows = self._halves(part, step)
            classes = outputs.shape[1]
            blocks = rows.view(len(outputs), classes, -1)
            known = self._explained(rows).view(-1, len(outputs), classes)
            covariance = blocks @ blocks.mT - torch.einsum("inc,ind->ncd", known, known)
            yield outputs, (self.posterior.temperature * covariance).to(outputs.dtype)

    def joint(self, x: Inputs, batch_size: int) -> tuple[Tensor, Tensor]:
        """See :class:`LinearLaw`."""
        outputs, rows = self._halves(x, batch_size)
        known = self._explained(rows)
        return outputs, self.posterior.temperature * (rows @ rows.mT - known.mT @ known)

    def displacements(self, draws: int, seed: int) -> list[Tensor]:
        """Displacements of θ under the posterior, by Matheron's rule: a draw δ of the prior, corrected by what the seen
        rows say of it."""
        root_t = math.sqrt(self.posterior.temperature)
        size = self.engine.layout.network_size
        tau = self.posterior.prior_precision[:size]
        made = []
        for k in range(draws):
            rng = generator(seed, "draw", k)
            white = torch.randn(size, generator=rng, dtype=tau.dtype).to(tau.device)
            noise = torch.randn(len(self.seen), generator=rng, dtype=torch.float64).to(tau.device)
            residual = self.seen @ white.double() + noise
            solved = torch.cholesky_solve(residual.unsqueeze(1), self.lower).squeeze(1)
            delta = torch.zeros_like(self.posterior.theta)
            delta[:size] = (root_t * (white.double() - self.seen.mT @ solved) * tau.double().rsqrt()).to(delta)
            made.append(delta)
        return made

    def functions(self, x: Inputs, deltas: list[Tensor], batch_size: int) -> Iterator[tuple[slice, Tensor]]:
        """See :class:`LinearLaw`."""
        return self.prior.functions(x, deltas, batch_size)

    def learned_moments(self) -> tuple[Tensor, Tensor]:
        """What the likelihood learns stays at its mode."""
        mean = self.posterior.theta[self.engine.layout.network_size :]
        return mean, torch.zeros(len(mean), len(mean), dtype=mean.dtype, device=mean.device)
