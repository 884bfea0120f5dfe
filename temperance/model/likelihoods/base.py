"""What a likelihood is: p(y | outputs of the network).

Shapes, everywhere: outputs ... × B × C, where the leading dimensions (if any) count draws of θ; targets y without them,
as :meth:`Likelihood.prepare` returns them; one number per example and draw, ... × B, comes back.
``learned`` holds what the likelihood itself learns (a noise scale) with the same leading dimensions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar

import torch
from torch import Tensor

from temperance.core.encoding import Value
from temperance.core.errors import DataError, NetworkError
from temperance.core.outcomes import Outcome
from temperance.model.learned import LearnedParameter

LearnedValues = Mapping[str, Tensor]


class Likelihood(Value, ABC):
    """p(y | outputs): log density per example, curvature in the outputs, and the predictive distribution."""

    outcome: ClassVar[Outcome]
    """What is predicted; rooms downstream know by it what to do with a prediction."""

    closed_links: ClassVar[bool] = True
    """Of classes and labels, whether :meth:`mean` is the softmax (the sigmoid) of the outputs, so that the closed forms
    of its average over Gaussian outputs hold."""

    @property
    def normalised(self) -> bool:
        """Whether exp of :meth:`log_prob` sums to one over y. Where it does not, it is a factor for θ alone: mean,
        variance, entropy and draws are those of :meth:`for_new_rows`, and ``fisher`` is an expectation over these."""
        return True

    @property
    def for_new_rows(self) -> Likelihood:
        """p(y | outputs) of a row that is predicted: itself, unless rows came into the training data in another way
        (because labellers agreed on them, say). It may use what this one learns, and learns nothing more."""
        return self

    def learned_parameters(self) -> tuple[LearnedParameter, ...]:
        """What is learned besides the network; none by default."""
        return ()

    @property
    def given_noise(self) -> float | None:
        """σ, where the noise is Gaussian, adds to the outputs and has one given scale: the curvature is then H / σ²."""
        return None

    def with_noise(self, scale: float) -> Likelihood:
        """The same with another ``given_noise``."""
        raise NotImplementedError(f"{type(self).__name__} has no noise of a given scale.")

    def log_noise_names(self) -> tuple[str, ...]:
        """Which of what is learned are logarithms of a noise scale: a number added to them widens the noise alone."""
        return ()

    def with_outliers(self, share: float, factor: float) -> Likelihood | None:
        """The same, but of a ``share`` of rows the noise is ``factor`` times as wide as of others. It must learn what
        this one learns, and have the same variance. ``None`` where there is no such law."""
        return None

    @property
    def outlier_factor(self) -> float:
        """How many times as wide the noise of outliers is: 1 where it has none of its own."""
        return 1.0

    def outputs_for(self, targets: int) -> int:
        """How many outputs the network must have to predict so many classes, labels or numbers."""
        return targets

    def arrange(self, outputs: Tensor, leading: int = 1) -> Tensor:
        """What the network gave, rows (``leading`` 1) or draws × rows (2) first, as ... × B × C, which is all that the
        library knows of outputs."""
        return outputs.unsqueeze(-1) if outputs.dim() == leading else outputs

    def shaped(self, probe: Callable[[], Tensor]) -> Likelihood:
        """The same, knowing how the network's answers are shaped, where it has to; ``probe`` gives those for a row or
        two, rows first, before :meth:`arrange`."""
        return self

    def seen(self, y: Tensor) -> Tensor | None:
        """Which outputs the (prepared) targets speak of, a mask B × C; ``None`` for all. The others have no part in the
        log-likelihood, nor in its curvature."""
        return None

    @abstractmethod
    def prepare(self, y: Tensor, num_outputs: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Check targets once, at the door, and bring them into the shape and dtype that the other functions take."""

    def begin(self, y: Tensor, weights: Tensor | None = None) -> dict[str, Tensor]:
        """Look at the training targets before a fit: warn where they do not suit, and say where what is learned shall
        start (by default, at its ``initial`` value). Rows count as often as ``weights`` say, those of weight 0 never;
        they are given where the data have some."""
        return {}

    @abstractmethod
    def log_prob(self, outputs: Tensor, y: Tensor, learned: LearnedValues) -> Tensor:
        """log p(y | outputs), per example: ... × B."""

    @abstractmethod
    def hessian(self, outputs: Tensor, y: Tensor, learned: LearnedValues) -> Tensor:
        """−∂² log p / ∂outputs², per example: ... × B × C × C. It may be indefinite (Student-t)."""

    @abstractmethod
    def fisher(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        """The Hessian's expectation over y ~ p(y | outputs), always positive semi-definite: ... × B × C × C."""

    def fisher_columns(self, outputs: Tensor, learned: LearnedValues) -> Iterator[Tensor]:
        """Columns c_k, B × C each, with Σ_k c_k c_kᵀ = :meth:`fisher`: one after the other, so that nothing of size
        C × C is held where a subclass knows its root."""
        values, vectors = torch.linalg.eigh(self.fisher(outputs, learned))
        root = vectors * values.clamp(min=0.0).sqrt().unsqueeze(-2)
        yield from root.unbind(-1)

    def fisher_product(self, outputs: Tensor, learned: LearnedValues, v: Tensor) -> Tensor:
        """:meth:`fisher` times v (B × C)."""
        return (self.fisher(outputs, learned) @ v.unsqueeze(-1)).squeeze(-1)

    def fisher_draw(self, outputs: Tensor, learned: LearnedValues, rng: torch.Generator) -> Tensor:
        """A random column, B × C, whose square c cᵀ has the expectation :meth:`fisher`: the score of a draw of y."""
        return self.score(outputs, self.sample(outputs, learned, rng), learned)

    def score(self, outputs: Tensor, y: Tensor, learned: LearnedValues) -> Tensor:
        """∂ log p(y | outputs) / ∂ outputs, B × C."""
        with torch.enable_grad():
            leaf = outputs.detach().requires_grad_()
            (found,) = torch.autograd.grad(self.log_prob(leaf, y, learned).sum(), leaf)
        return found

    def learned_fisher(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        """Fisher information of what the likelihood learns, summed over the batch: L × L. What it has in common with
        that of the outputs (nothing, for noise scales) is left aside."""
        raise NotImplementedError(f"{type(self).__name__} has no Fisher information for what it learns")

    @abstractmethod
    def mean(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        """E[y]: ... × B × D (class probabilities for classification)."""

    @abstractmethod
    def variance(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        """Var[y], per output: ... × B × D."""

    @abstractmethod
    def entropy(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        """Entropy of p(y | outputs) in nats (differential for real targets): ... × B."""

    @abstractmethod
    def sample(self, outputs: Tensor, learned: LearnedValues, rng: torch.Generator) -> Tensor:
        """A draw of y for every example and draw of θ: ... × B for classes, ... × B × D otherwise."""

    def negative_log_likelihood(self, outputs: Tensor, y: Tensor, learned: LearnedValues) -> Tensor:
        """−Σ log p(y | outputs) over the batch: the hot path of training."""
        return -self.log_prob(outputs, y, learned).sum(-1)

    def weighed(self, outputs: Tensor, y: Tensor, learned: LearnedValues, weights: Tensor | None) -> Tensor:
        """−Σ w log p(y | outputs) over the batch, with ``weights`` B (or ... × B); none are ones."""
        if weights is None:
            return self.negative_log_likelihood(outputs, y, learned)
        found = self.log_prob(outputs, y, learned)
        return -(found * weights.to(found)).sum(-1)

    def row_slopes(
        self, outputs: Tensor, y: Tensor, learned: LearnedValues
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]] | None:
        """−log p of each example (... × B), and its derivatives in the outputs (... × B × C) and in what is learned
        (... × B × its shape), where they are known in closed form: training then needs no graph."""
        return None

    def slopes(
        self, outputs: Tensor, y: Tensor, learned: LearnedValues, weights: Tensor | None
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """:meth:`weighed` of each draw, and its gradients in the outputs and in what is learned: by
        :meth:`row_slopes`, or else by autograd. The hot path of ensembles."""
        known = self.row_slopes(outputs, y, learned)
        if known is None:
            return self._traced_slopes(outputs, y, learned, weights)
        each, slope, found = known
        if weights is not None:
            often = weights.to(each)
            each, slope = each * often, slope * often.unsqueeze(-1)
            found = {name: value * often.unsqueeze(-1) for name, value in found.items()}
        return each.sum(-1), slope, {name: value.sum(-2) for name, value in found.items()}

    def _traced_slopes(
        self, outputs: Tensor, y: Tensor, learned: LearnedValues, weights: Tensor | None
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        with torch.enable_grad():
            leaf = outputs.detach().requires_grad_()
            own = {name: value.detach().requires_grad_() for name, value in learned.items()}
            losses = self.weighed(leaf, y, own, weights)
            slope, *rest = torch.autograd.grad(losses.sum(), [leaf, *own.values()], allow_unused=True)
        found = {name: value for name, value in zip(own, rest, strict=True) if value is not None}
        return losses.detach(), torch.zeros_like(outputs) if slope is None else slope, found

    def weighed_fisher(self, outputs: Tensor, learned: LearnedValues, weights: Tensor | None) -> Tensor:
        """:meth:`learned_fisher` with rows that count so often as ``weights`` says."""
        if weights is None:
            return self.learned_fisher(outputs, learned)
        each = [self.learned_fisher(row.unsqueeze(0), learned) for row in outputs]
        return torch.tensordot(weights.to(outputs), torch.stack(each), dims=1)

    def perturb(self, y: Tensor, learned: LearnedValues, temperature: float, rng: torch.Generator) -> Tensor | None:
        """Targets with a draw of the noise added, for ensembles whose members are posterior draws; ``None`` where the
        noise is not additive."""
        return None

    def check_outputs(self, outputs: Tensor) -> None:
        """Raise :class:`NetworkError` if the network's output does not fit."""
        if outputs.dim() != 2:
            raise NetworkError(
                f"the network's output must be a matrix, rows × outputs, for {self!r}; got shape "
                f"{tuple(outputs.shape)}."
            )


class QuantityLikelihood(Likelihood):
    """Of numbers with an order, real or counted: what a mixture over draws of θ needs for its quantiles."""

    in_torch: ClassVar[bool] = True
    """Whether the distribution function is made of torch's operations alone, so that it can be exported."""

    @abstractmethod
    def cdf(self, outputs: Tensor, y: Tensor, learned: LearnedValues) -> Tensor:
        """P(Y_d ≤ y_d | outputs), ... × B × D."""

    def exponential_moments(self) -> bool:
        """Whether E exp(t y) is finite: not under heavy tails."""
        return True

    def log_exponential_moment(self, outputs: Tensor, learned: LearnedValues, t: float) -> Tensor | None:
        """log E exp(t y_d) in float64, ... × B × D, where it is known in closed form."""
        return None


def check_real_targets(y: Tensor, num_outputs: int, dtype: torch.dtype, name: str) -> Tensor:
    """Real targets as B × D."""
    if y.is_complex():
        raise DataError(f"`y` must be real numbers for {name}; got dtype {y.dtype}.")
    made = y.to(dtype)
    if made.dim() == 1:
        made = made.unsqueeze(-1)
    if made.dim() != 2 or made.shape[-1] != num_outputs:
        raise DataError(
            f"`y` must have shape (rows, {num_outputs}) to fit the network's {num_outputs} outputs under {name}; "
            f"got {tuple(y.shape)}."
        )
    # A sum that is finite has finite terms, and costs no memory; one of finite terms may still be infinite.
    if not bool(torch.isfinite(made.sum())) and not bool(torch.isfinite(made).all()):
        raise DataError("`y` must be finite; got NaN or infinity. Remove or impute these rows.")
    return made


def diagonal_columns(values: Tensor) -> Iterator[Tensor]:
    """Columns of the root of diag(values), ... × C."""
    root = values.sqrt()
    for k in range(values.shape[-1]):
        column = torch.zeros_like(root)
        column[..., k] = root[..., k]
        yield column


def diagonal(values: Tensor) -> Tensor:
    """... × C to ... × C × C."""
    return torch.diag_embed(values)
