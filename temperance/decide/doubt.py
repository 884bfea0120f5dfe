"""One number per row that is higher where there is more doubt."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from temperance.core.checks import shown
from temperance.core.errors import ArgumentError
from temperance.decide.members import check_predictive
from temperance.predict import CategoryPredictive, Predictive, ValuePredictive

Score = str | Callable[[Predictive], Tensor]


def _largest(predictive: CategoryPredictive) -> Tensor:
    """The probability of the answer given (of several yes/no labels: of the least certain one)."""
    p = predictive.probs
    return p.amax(-1) if predictive.exclusive else torch.maximum(p, 1 - p).amin(-1)


def _margin(predictive: CategoryPredictive) -> Tensor:
    if not predictive.exclusive:
        return 1 - (2 * predictive.probs - 1).abs().amin(-1)
    best = predictive.probs.topk(2, dim=-1).values
    return 1 - (best[:, 0] - best[:, 1])


def _total_std(predictive: ValuePredictive) -> Tensor:
    return predictive.variance().mean(-1).sqrt()


_BOTH: dict[str, Callable[[Predictive], Tensor]] = {
    "entropy": lambda p: p.entropy(),
    "mutual_information": lambda p: p.mutual_information(),
    "aleatoric": lambda p: p.aleatoric(),
    "epistemic_std": lambda p: p.epistemic_variance().mean(-1).sqrt(),
}
_CLASSES: dict[str, Callable[[CategoryPredictive], Tensor]] = {
    "confidence": lambda p: 1 - _largest(p),
    "max_prob": lambda p: 1 - _largest(p),
    "margin": _margin,
}
_VALUES: dict[str, Callable[[ValuePredictive], Tensor]] = {
    "confidence": _total_std,
    "std": _total_std,
}


def check_kind(kind: object, argument: str = "kind") -> None:
    """A name that :func:`doubt` knows, for one kind of target or the other, or a function of a predictive."""
    known = dict.fromkeys([*_CLASSES, *_VALUES, *_BOTH])
    if not (isinstance(kind, str) and kind in known) and (not callable(kind) or isinstance(kind, type)):
        raise ArgumentError(
            f"`{argument}` must be one of {', '.join(map(repr, known))}, or a function of a predictive; got "
            f"{shown(kind)}."
        )


def doubt(predictive: Predictive, kind: Score = "confidence") -> Tensor:
    """Doubt per row, higher where there is more of it.

    ``kind`` is

    * ``"confidence"``: of classes 1 − max p (``"max_prob"`` is the same), of real targets the predictive standard
      deviation (``"std"``);
    * ``"entropy"``, ``"mutual_information"``, ``"aleatoric"``: in nats;
    * ``"epistemic_std"``: how far members are apart, √ of the mean epistemic variance over outputs or classes;
    * ``"margin"``: of classes, 1 − (best − second best);
    * or a function of the predictive that gives one number for each row.

    >>> doubt("cat")
    Traceback (most recent call last):
    temperance.core.errors.ArgumentError: `predictive` must be what `fitted.predict(x)` gives; got str.
    """
    return doubt_by(predictive, kind, "kind")


def doubt_by(predictive: Predictive, kind: Score, argument: str) -> Tensor:
    """The same for a function that calls what it is given by another name."""
    made = check_predictive(predictive)
    check_kind(kind, argument)
    if callable(kind):
        found = torch.as_tensor(kind(made))
    else:
        own = _CLASSES if isinstance(made, CategoryPredictive) else _VALUES
        known = {**_BOTH, **own}
        if not isinstance(kind, str) or kind not in known:
            what = "classes" if isinstance(made, CategoryPredictive) else "real targets"
            raise ArgumentError(
                f"`{argument}` must be one of {', '.join(sorted(known))} for {what}, or a function; got {shown(kind)}."
            )
        found = known[kind](made)  # type: ignore[operator]
    if found.shape != (len(made),):
        raise ArgumentError(
            f"`{argument}` must give one number for each of {len(made)} rows; got {tuple(found.shape)}."
        )
    if bool(found.isnan().any()):
        raise ArgumentError(f"`{argument}` {kind!r} gives NaN for {int(found.isnan().sum())} rows.")
    return found.detach()
