"""``Fitted``: what ``fit`` gives back. It predicts, and it can be saved."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from temperance.core.checks import check_count, shown
from temperance.core.encoding import Value
from temperance.core.errors import ArgumentError, NumericalError
from temperance.core.seeds import check_seed
from temperance.data.data import Data
from temperance.engine.engine import Engine
from temperance.engine.precision import plain_copy
from temperance.inference.curvature.evidence import Tune, evidence_gradient
from temperance.model.target import Target
from temperance.posteriors import CurvatureGaussian, Density, Posterior, Spread, centre_of
from temperance.posteriors.dropout import unmasked
from temperance.predict import Predictive, evaluate, predict
from temperance.run import store
from temperance.run.parts import Parts, RunInfo, describe, value_part


@dataclass(frozen=True)
class Elbo:
    """An evidence lower bound in nats, and the standard error of its Monte-Carlo average."""

    value: float
    standard_error: float


_reporters: list[Callable[..., Path]] = []


def register_reporter(function: Callable[..., Path]) -> None:
    """Let ``function`` write what :meth:`Fitted.report` asks for: the room of reports lies above this one."""
    _reporters[:] = [function]


@dataclass
class Fitted:
    """A target and its posterior; ``data`` and ``held_out`` are the rows of a fit in this session (not saved).

    >>> import temperance as tp
    >>> train, test = tp.data.load("iris")
    >>> target = tp.Target(tp.nn.MLP(4, [16], 3), tp.Categorical(), tp.GaussianPrior(scale=1.0))
    >>> fitted = tp.fit(target, tp.MAP(lr=1e-2), train, epochs=20, seed=0)
    >>> fitted.predict(test.x).probs.shape
    torch.Size([30, 3])
    """

    target: Target
    posterior: Posterior
    info: RunInfo
    method: Value | None = None
    seed: int = 0
    run: dict[str, Any] = field(default_factory=dict, repr=False)
    data: Data | None = field(default=None, repr=False, compare=False)
    held_out: Data | None = field(default=None, repr=False, compare=False)
    _engine: Engine | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def engine(self) -> Engine:
        """What evaluates the target; made when it is first asked for, and anew where the target is another."""
        if self._engine is None or self._engine.target is not self.target:
            self._engine = Engine(self.target)
        return self._engine

    @engine.setter
    def engine(self, engine: Engine) -> None:
        self._engine = engine

    def __repr__(self) -> str:
        status = self.info.status.code
        kind, seconds = type(self.posterior).__name__, self.info.seconds
        return f"Fitted({self.method!r}, {kind}, {self.info.steps} steps, {seconds:.1f} s, {status})"

    def predict(
        self,
        x: Any,
        *,
        draws: int | None = None,
        seed: int = 0,
        batch_size: int = 1024,
        by: str | None = None,
        precision: float | None = None,
        limit: int | None = None,
    ) -> Predictive:
        """The predictive distribution at ``x``; see :func:`temperance.predict.predict`. ``precision=0.01`` takes
        as many draws as it needs, at most ``limit``; ``monte_carlo_error()`` of what comes back tells what it got."""
        return predict(
            self.engine,
            self.posterior,
            x,
            draws=draws,
            seed=seed,
            batch_size=batch_size,
            by=by,
            precision=precision,
            limit=limit,
        )

    def evaluate(
        self,
        data: Any,
        *,
        draws: int | None = None,
        by: str | None = None,
        precision: float | None = None,
        limit: int | None = None,
    ) -> dict[str, float]:
        """Scores on data with known answers: ``log_loss``; for classes ``accuracy``, ``brier`` and ``ece``; for real
        values and counts ``rmse``, ``crps`` (of 200 draws of y) and ``coverage_90`` of the 90 % interval; for any other
        outcome what is registered in :data:`temperance.predict.SCORES`. Where rows have positions these are scores of
        the positions that count, and ``row_log_loss`` is that of whole rows. Weights of rows are left aside. The
        other arguments are those of :meth:`predict`."""
        known = Data.of(data)
        return evaluate(self.predict(known.x, draws=draws, by=by, precision=precision, limit=limit), known.y)

    def report(self, path: str | Path, test: Any = None, **options: Any) -> Path:
        """Write a page, ``path``/index.html, that says how far to trust this model: calibration, errors, uncertainty in
        and out of distribution, the strangest rows, the sampler's diagnostics, settings. Returns the page's path.

        ``test`` is data that the model has not seen; without it the held-out rows of the fit serve, or, with a warning
        on the page, the training rows. For the options (``ood``, ``feature_names``, ``class_names``, ``images``,
        ``title``, ``overwrite``) see :func:`temperance.show.report.report`.
        """
        if not _reporters:
            importlib.import_module("temperance.show.report")  # registers itself; it stands above this room
        return _reporters[0](self, path, test, **options)

    def network(self, component: int | None = None) -> nn.Module:
        """A copy of the network at the posterior's mean (of one component of a mixture), in evaluation mode."""
        parts = self.posterior.parts()
        if len(parts) > 1 and component is None:
            raise ArgumentError("`component` must be given: the average of a mixture's weights is no good network.")
        chosen = 0 if component is None else component
        if not isinstance(chosen, int) or not 0 <= chosen < len(parts):
            raise ArgumentError(f"`component` must be from 0 to {len(parts) - 1}; got {shown(component)}.")
        centre = centre_of(parts[chosen][1])
        theta = centre.mean
        made = unmasked(plain_copy(self.target.network))
        values = dict(self.target.layout.unflatten(theta, "network"))
        with torch.no_grad():
            for name, parameter in made.named_parameters():
                parameter.grad = None
                parameter.data = values[name].clone() if name in values else parameter.data.clone()
            for name, buffer in made.named_buffers():
                if name in centre.buffers:
                    held = centre.buffers[name]
                    if held.shape != buffer.shape:
                        raise ArgumentError(
                            f"the average of {type(centre).__name__} is no network: each draw keeps statistics of its "
                            f"own ({name}). Use `predict`, which averages over the draws."
                        )
                    buffer.copy_(held)
        return made.eval()

    def log_evidence(self, tolerance: float | None = None) -> float:
        """log p(D), where the method has it; refused away from a mode (see :class:`LaplacePosterior`)."""
        if not isinstance(self.posterior, CurvatureGaussian):
            raise ArgumentError(f"{type(self.method).__name__} does not estimate the evidence; a Laplace method does.")
        return self.posterior.log_evidence(tolerance)

    def evidence_gradient(self, prior: str | None = "layer", noise: bool = False) -> dict[str, float]:
        """How the log evidence of a Laplace posterior changes with the log precision of the prior, of all parameters
        (``"scalar"``) or of each layer by name, and with the log of the noise scale (``"noise"``)."""
        if not isinstance(self.posterior, CurvatureGaussian):
            raise ArgumentError(f"{type(self.method).__name__} does not estimate the evidence; a Laplace method does.")
        return evidence_gradient(self.engine, self.posterior, Tune(prior, noise=noise))  # type: ignore[arg-type]

    def elbo(self, data: Any, *, draws: int = 100, seed: int = 0) -> Elbo:
        """The evidence lower bound of the posterior q on ``data``, by averaging over draws of θ from q,

            E_q[log p(D | θ) / λ + log p(θ) − log q(θ)] ≤ log p(D),

        with its Monte-Carlo standard error. Of any posterior with a density: variational, SWAG, Laplace; of one over a
        part of θ, or over a subspace, it is the bound of that smaller problem. (At a temperature T the first two terms
        are divided by T.)
        """
        target, posterior = self.posterior.inside(self.target)
        engine = self.engine.on(target)
        if not isinstance(posterior, Density):
            raise ArgumentError(
                f"the ELBO needs a posterior with a density; {type(posterior).__name__} of "
                f"{type(self.method).__name__} has none."
            )
        if target.moving:
            raise ArgumentError("the ELBO needs a likelihood of θ alone; batch norm makes it depend on its statistics.")
        check_count(draws, "draws")
        check_seed(seed)
        known = Data.of(data).to(target.device)
        terms = []
        with torch.no_grad():
            theta = posterior.sample(draws, seed)
            for rows in theta.split(max(1, min(draws, 2**24 // target.layout.size))):
                log_joint = engine.log_density(rows.to(target.device), known)
                terms.append(log_joint.double().cpu() - posterior.log_prob(rows).double().cpu())
        if isinstance(posterior, Spread):  # draws must be where their density says, or log q is rounding error
            inside = posterior.operator.inverse_quadratic(theta[:10] - posterior.mean).double().mean()
            expected = posterior.operator.rank
            if not 0.1 * expected <= float(inside) <= 10 * expected + 10:
                raise NumericalError(
                    f"the covariance is too close to singular for a density: draws are at a squared distance of "
                    f"{float(inside):.3g} where {expected} is expected. Use float64, or train with a smaller lr."
                )
        values = torch.cat(terms)
        error = float(values.std() / len(values) ** 0.5) if len(values) > 1 else math.inf
        return Elbo(float(values.mean()), error)

    def save(self, path: str | Path) -> None:
        """Write the run to a folder: safetensors and a JSON manifest, all at once or not at all.

        What is learned is written, and a digest of what is frozen: to load a run of a subset, bring the same pretrained
        network. A folder that holds more than a run (an estimator, a table, a calibrated model) is not replaced by one
        that lacks it.
        """
        manifest, parts = self.written()
        with store.held(path):
            store.check_loses_nothing(path, parts)
            store.write_run(path, manifest, parts)

    def written(self) -> tuple[dict[str, Any], Parts]:
        """The manifest and the parts that :meth:`save` writes; those who keep more beside a run add to them."""
        manifest, parts = describe(self.target, self.info, self.method, self.seed, self.run)
        return manifest, {**parts, **value_part("posterior", self.posterior)}
