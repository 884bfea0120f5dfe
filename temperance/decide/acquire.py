"""Which rows to have labelled next. A score is a function of a predictive with one number per row; ``choose`` takes the
best k, or hands the choice of a whole batch to :func:`batch_bald`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from temperance.core.checks import check_count, shown
from temperance.core.errors import ArgumentError
from temperance.core.seeds import check_seed, generator
from temperance.decide.information import Selection, batch_bald, epig, joint_information
from temperance.decide.members import check_predictive
from temperance.predict import CategoryPredictive, Predictive


def bald(predictive: Predictive) -> Tensor:
    """I(y; θ | x, D), what a label would tell of θ (Houlsby 2011, Gal 2017): high where members are sure and disagree.

    Of Gaussian members with Gaussian noise it is ½ log(variance / aleatoric variance).

    >>> import temperance as tp
    >>> from temperance.posteriors import Draws
    >>> target = tp.Target(torch.nn.Linear(1, 2, bias=False), tp.Categorical(), tp.GaussianPrior(1.0))
    >>> two = Draws(torch.tensor([[50.0, -50.0], [-50.0, 50.0]]))
    >>> bald(tp.Fitted(target, two, None).predict(torch.ones(1, 1)))  # log 2
    tensor([0.6931])
    """
    return check_predictive(predictive).mutual_information()


def entropy(predictive: Predictive) -> Tensor:
    """H[y | x, D]: all doubt, noise included."""
    return check_predictive(predictive).entropy()


def variance(predictive: Predictive) -> Tensor:
    """The epistemic variance, summed over outputs (or classes): how far members are apart."""
    return check_predictive(predictive).epistemic_variance().sum(-1)


def mean_std(predictive: Predictive) -> Tensor:
    """The standard deviation of the members' means, averaged over outputs (or classes)."""
    return check_predictive(predictive).epistemic_variance().sqrt().mean(-1)


def variation_ratio(predictive: Predictive) -> Tensor:
    """1 − max_c p(c): the probability that the most probable class is wrong."""
    made = check_predictive(predictive)
    if not isinstance(made, CategoryPredictive):
        raise ArgumentError(f"`predictive` must be of classes for `variation_ratio`; got {type(made).__name__}.")
    p = made.probs
    return 1 - p.amax(-1) if made.exclusive else torch.minimum(p, 1 - p).amax(-1)


def random(predictive: Predictive, seed: int = 0) -> Tensor:
    """Numbers at random: what every other score has to beat."""
    rng = generator(check_seed(seed), "random-acquisition")
    return torch.rand(len(check_predictive(predictive)), generator=rng)


Acquisition = Callable[..., Any]


def takes(function: Acquisition, name: str) -> bool:
    """Whether a function has an argument of that name."""
    try:
        found = inspect.signature(function).parameters.get(name)
    except (TypeError, ValueError):
        return False
    return found is not None


def needs(function: Acquisition, name: str) -> bool:
    """Whether it has an argument of that name without a value."""
    return takes(function, name) and inspect.signature(function).parameters[name].default is inspect.Parameter.empty


def choose(
    predictive: Predictive,
    k: int,
    acquire: Acquisition = bald,
    *,
    among: int | None = None,
    targets: Any = None,
    seed: int = 0,
) -> Selection:
    """k rows to have labelled, by ``acquire``: a score of each row, or a function with an argument ``k`` that chooses a
    batch, such as :func:`batch_bald`.

    ``targets`` is handed on to an ``acquire`` that has such an argument (:func:`epig`), ``seed`` likewise. ``among``
    limits the choice to the first so many rows. Equal scores are taken in the order of the rows.

    >>> choose(3, 1)
    Traceback (most recent call last):
    temperance.core.errors.ArgumentError: `predictive` must be what `fitted.predict(x)` gives; got int.
    """
    made = check_predictive(predictive)
    if not callable(acquire):
        raise ArgumentError(f"`acquire` must be a function such as bald or batch_bald; got {shown(acquire)}.")
    check_seed(seed)
    limit = len(made) if among is None else check_count(among, "among")
    if check_count(k, "k") > limit:
        raise ArgumentError(f"`k` must be at most the {limit} rows there are; got {k}.")
    extra: dict[str, Any] = {"seed": check_seed(seed)} if takes(acquire, "seed") else {}
    if needs(acquire, "targets") and targets is None:
        raise ArgumentError("`targets` must give the rows that matter for this `acquire`; got None.")
    if takes(acquire, "targets") and targets is not None:
        extra["targets"] = targets
    if takes(acquire, "k"):
        found = acquire(made, k=k, **extra)
        if not isinstance(found, Selection):
            rows = torch.as_tensor(found).long().flatten()
            found = Selection(rows, torch.zeros(len(rows), dtype=torch.float64))
        if len(found.rows.unique()) != k or int(found.rows.max()) >= limit or int(found.rows.min()) < 0:
            raise ArgumentError(f"`acquire` must choose {k} different rows among {limit}; got {found.rows.tolist()}.")
        return found
    score = torch.as_tensor(acquire(made, **extra)).detach().double().cpu()
    if score.shape != (len(made),) or bool(score.isnan().any()):
        raise ArgumentError(f"`acquire` must give a number for each of {len(made)} rows; got {tuple(score.shape)}.")
    order = score[:limit].argsort(descending=True, stable=True)[:k]
    return Selection(order, score[order])


__all__ = [
    "Acquisition",
    "Selection",
    "bald",
    "batch_bald",
    "choose",
    "entropy",
    "epig",
    "joint_information",
    "mean_std",
    "random",
    "variance",
    "variation_ratio",
]
