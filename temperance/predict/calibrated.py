"""Class predictives whose members are mapped, and predictives of outputs that somebody else computed.

* :func:`map_logits`: every member's logits f become a · f + b. The result is a full predictive, with its own split into
  aleatoric and epistemic uncertainty; of a linearised network the Gaussian over the outputs is mapped exactly.
* :class:`MovedPredictive`: averaged probabilities p̄ are replaced by given ones, q.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor

from temperance.core.checks import check_count, shown
from temperance.core.errors import ArgumentError
from temperance.data.sources import Inputs
from temperance.engine.engine import Engine
from temperance.model.likelihoods import Categorical, Likelihood
from temperance.posteriors.nodes import Stratum
from temperance.predict.classes import CategoryPredictive, ClassPredictive
from temperance.predict.linearised import FUNCTION_DRAWS, LinearisedMixin
from temperance.predict.linearised_classes import LinearisedClassPredictive
from temperance.predict.predictive import PREDICTIVES, Predictive
from temperance.predict.source import MappedOutputs, OutputBlock, Outputs


class GivenSource(Outputs):
    """Outputs that are there already: S × rows × outputs, with weights and what the likelihood has learned."""

    def __init__(self, outputs: Tensor, weights: Tensor, learned: Mapping[str, Tensor]) -> None:
        where = SimpleNamespace(device=outputs.device, layout=SimpleNamespace(dtype=outputs.dtype))
        self.engine = cast(Engine, where)
        self.outputs, self.weights, self.learned = outputs, weights, dict(learned)
        self.rows, self.num_outputs = outputs.shape[1], outputs.shape[2]

    def __len__(self) -> int:
        return len(self.outputs)

    def blocks(self) -> Iterator[OutputBlock]:
        """All at once."""
        yield slice(0, self.rows), self.outputs, self.learned

    @property
    def strata(self) -> tuple[Stratum, ...]:
        """Independent draws of one law, as far as anybody knows; a single member is a point."""
        return (Stratum(len(self), drawn=len(self) > 1),)

    def row_inputs(self) -> Inputs:
        """The outputs themselves: nothing else is known of a row."""
        return self.outputs.transpose(0, 1)

    def same_draws(self, other: Outputs) -> bool:
        """Where the weights are the same: whoever computed these outputs knows what belongs together."""
        return isinstance(other, GivenSource) and torch.equal(self.weights, other.weights)


def from_outputs(
    outputs: Any, likelihood: Likelihood, *, weights: Any = None, learned: Mapping[str, Tensor] | None = None
) -> Predictive:
    """The predictive of members' outputs that come from anywhere, another library say.

    Args:
        outputs: S × rows × outputs (logits for classes), or rows × outputs of a single network; under ``PerPosition``
            S × rows × positions × numbers, as the networks gave them.
        likelihood: what the outputs mean.
        weights: of the S members; equal unless given.
        learned: what the likelihood has learned, each with S first.

    >>> import temperance as tp
    >>> from_outputs([[0.0, 2.0]], tp.Categorical()).probs
    tensor([[0.1192, 0.8808]])
    """
    made = torch.as_tensor(outputs).detach()
    made = made if made.is_floating_point() else made.float()
    made = made.unsqueeze(0) if made.dim() == 2 else made
    if isinstance(likelihood, Likelihood) and made.dim() > 3:
        likelihood, made = likelihood.shaped(lambda: made[0]), likelihood.arrange(made, 2)
    if made.dim() != 3 or 0 in made.shape or not bool(torch.isfinite(made).all()):
        raise ArgumentError(f"`outputs` must be finite, members × rows × outputs; got shape {tuple(made.shape)}.")
    if not isinstance(likelihood, Likelihood):
        raise ArgumentError(
            f"`likelihood` must be a temperance likelihood such as Categorical(); got {shown(likelihood)}."
        )
    likelihood.check_outputs(made[0])
    likelihood = likelihood.for_new_rows
    share = torch.ones(len(made)) if weights is None else torch.as_tensor(weights)
    share = share.to(device=made.device, dtype=torch.float64)
    if share.shape != (len(made),) or not bool((share >= 0).all()) or not 0 < float(share.sum()) < float("inf"):
        raise ArgumentError(f"`weights` must be {len(made)} numbers from 0 on, not all zero; got {shown(weights)}.")
    source = GivenSource(made, (share / share.sum()).to(made.dtype), learned or {})
    return PREDICTIVES.of(likelihood.outcome)(source, likelihood)


class LogitSource(MappedOutputs):
    """The members of ``base`` with logits scale · f + shift; ``scale`` and ``shift`` have one entry, or one a class."""

    def __init__(self, base: Outputs, scale: Tensor, shift: Tensor) -> None:
        self.base, self.scale, self.shift = base, scale, shift
        self.engine, self.rows, self.num_outputs, self.weights = base.engine, base.rows, base.num_outputs, base.weights
        self.shares: tuple[float, ...] = getattr(base, "shares", (1.0,))
        self.laws: list[Any] = getattr(base, "laws", [])

    def blocks(self) -> Iterator[OutputBlock]:
        """See :class:`~temperance.predict.source.Source`."""
        for rows, outputs, learned in self.base.blocks():
            yield rows, outputs * self.scale + self.shift, learned


class _MappedLinearised(LinearisedClassPredictive):
    """a · f + b of a linearised network: the mean becomes a · m + b, the covariance a Σ aᵀ, element by element."""

    def __init__(self, base: LinearisedClassPredictive, scale: Tensor, shift: Tensor) -> None:
        source = LogitSource(base.source, scale, shift)
        super().__init__(cast(Any, source), base.likelihood)
        self.base, self.link, self._scale, self._shift = base, base.link, scale, shift
        self.functions = lambda count: cast(Any, LogitSource(base.functions(count), scale, shift))

    def _marginals(self) -> Iterator[tuple[slice, list[Tensor], list[Tensor]]]:
        square = self._scale.unsqueeze(-1) * self._scale.unsqueeze(-2)
        for rows, means, covariances in self.base._marginals():
            yield rows, [m * self._scale + self._shift for m in means], [c * square for c in covariances]

    def _joint_moments(self) -> list[tuple[Tensor, Tensor]]:
        made = []
        for means, joint in self.base._joint_moments():
            each = self._scale.to(joint).expand(self.source.num_outputs).repeat(self.source.rows)
            made.append((means * self._scale + self._shift, joint * each.unsqueeze(-1) * each))
        return made


def map_logits(base: CategoryPredictive, scale: Tensor, shift: Tensor) -> ClassPredictive:
    """The predictive whose members' logits are scale · f + shift.

    >>> import temperance as tp
    >>> cold = map_logits(from_outputs([[0.0, 2.0]], tp.Categorical()), torch.tensor([0.5]), torch.zeros(1))
    >>> cold.probs  # a temperature of 2
    tensor([[0.2689, 0.7311]])
    """
    if isinstance(base, MovedPredictive):
        raise ArgumentError("`predictive` has probabilities that were replaced; map the logits first, then replace.")
    if isinstance(base, LinearisedClassPredictive):
        return _MappedLinearised(base, scale, shift)
    return ClassPredictive(LogitSource(base.source, scale, shift), base.likelihood)


class TransportSource(MappedOutputs):
    """Members of ``base``, whose average is p̄, carried to an average of q by the channel that moves fewest labels.

    A label c stays with probability min(1, q_c / p̄_c) and otherwise becomes one of those that have too little, in
    proportion to (q − p̄)₊. The channel is the same for all members, so by data processing it can only lower what y
    tells of θ.
    """

    def __init__(self, base: Outputs, likelihood: Likelihood, probs: Tensor, binary: bool) -> None:
        self.base, self.likelihood = base, likelihood
        self.engine, self.rows, self.num_outputs, self.weights = base.engine, base.rows, base.num_outputs, base.weights
        now, wanted = Predictive.mean(ClassPredictive(base, likelihood)).double(), probs.double()
        if binary:
            now, wanted = (torch.stack([1 - p, p], dim=-1) for p in (now, wanted))
        self._keep = torch.where(now > wanted, wanted / now.clamp(min=1e-300), torch.ones_like(now))
        lacking = (wanted - now).clamp(min=0.0)
        total = lacking.sum(-1, keepdim=True)
        self._fill = torch.where(total > 0, lacking / total.clamp(min=1e-300), wanted)
        self._binary = binary

    def blocks(self) -> Iterator[OutputBlock]:
        """Outputs are the logarithms of the members' probabilities; of yes/no labels, their logits."""
        for rows, outputs, learned in self.base.blocks():
            p = self.likelihood.mean(outputs, learned).double()
            p = torch.stack([1 - p, p], dim=-1) if self._binary else p
            kept = p * self._keep[rows]
            made = kept + (1 - kept.sum(-1, keepdim=True)).clamp(min=0.0) * self._fill[rows]
            log_p = made.clamp(min=torch.finfo(outputs.dtype).tiny).log()
            yield rows, (log_p[..., 1] - log_p[..., 0] if self._binary else log_p).to(outputs.dtype), learned


class MovedPredictive(ClassPredictive):
    """``base`` with its averaged probabilities replaced by ``probs``.

    ``probs``, ``log_prob``, ``entropy`` and ``predict`` are those of the new probabilities. The mutual information is
    the base's, for a map of probabilities learns nothing of θ, but at most the new entropy; what is left of the
    entropy is aleatoric. Members (``std``, ``interval``, ``sample``, ``joint_log_prob``, variances) are carried along
    by :class:`TransportSource`, so that they average to the new probabilities; their own mutual information may be
    less.

    >>> import temperance as tp
    >>> two = from_outputs([[[9.0, 0.0]], [[0.0, 9.0]]], tp.Categorical())
    >>> moved = MovedPredictive(two, torch.tensor([[0.7, 0.3]]))
    >>> two.mutual_information(), moved.entropy(), moved.mutual_information()
    (tensor([0.6919]), tensor([0.6109]), tensor([0.6109]))
    """

    def __init__(self, base: CategoryPredictive, probs: Tensor) -> None:
        binary = not base.exclusive
        plain = base.likelihood if base.likelihood.closed_links else Categorical()  # of logarithms of probabilities
        super().__init__(TransportSource(base.source, base.likelihood, probs, binary), plain)
        self.base = base
        self.__dict__["probs"] = probs.to(base.weights.dtype)

    def mean(self) -> Tensor:
        """The new probabilities."""
        return self.probs

    def log_prob(self, y: Any) -> Tensor:
        """log q(y) per row; of several yes/no labels, the sum over labels."""
        soft = self._expected_log_prob(y)
        if soft is not None:
            return soft
        engine, p = self._targets(y), self.probs
        if not self.exclusive:
            return (torch.special.xlogy(engine, p) + torch.special.xlog1py(1 - engine, -p)).sum(-1)
        return p.gather(-1, engine.unsqueeze(-1)).squeeze(-1).log()

    def mutual_information(self) -> Tensor:
        """The base's, at most the new entropy."""
        return torch.minimum(self.base.mutual_information().clamp(min=0.0), self.entropy())

    def aleatoric(self) -> Tensor:
        """The rest of the entropy."""
        return self.entropy() - self.mutual_information()

    def _together(self, draws: int) -> ClassPredictive:
        """Members that go together over rows."""
        source = self.source
        if isinstance(self.base, LinearisedMixin):
            functions = self.base.functions(max(FUNCTION_DRAWS, draws))
            source = TransportSource(functions, self.base.likelihood, self.probs, not self.exclusive)
        return ClassPredictive(source, self.likelihood)

    def as_functions(self) -> ClassPredictive:
        """See :class:`Predictive`."""
        return self._together(FUNCTION_DRAWS)

    def sample(self, n: int = 1, seed: int = 0) -> Tensor:
        """n draws of all rows together; each row has the new probabilities."""
        return self._together(check_count(n, "n")).sample(n, seed)

    def joint_log_prob(self, y: Any) -> Tensor:
        """log p of all rows together."""
        return self.as_functions().joint_log_prob(y)
