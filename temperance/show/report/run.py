"""The report of what ``fit`` returned: which rows to measure on, and what stands in for strange ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from temperance.core.errors import ArgumentError
from temperance.core.seeds import generator
from temperance.data.data import Data, DataInfo
from temperance.model.likelihoods import RealLikelihood
from temperance.predict import Predictive, ValuePredictive
from temperance.predict.affine import AffinePredictive
from temperance.run.fitted import Fitted
from temperance.show.report.examples import as_images
from temperance.show.report.folder import check_folder
from temperance.show.report.page import Request, write

_STRANGE = 10_000  # rows of the stand-in, at most
_FEWEST = 5
_FLATTERING = (
    "Measured on the rows it was trained on: too good to be true. A model knows its own training data by heart; give "
    "data that it has not seen, report(path, test), before you rely on any number here."
)
_STOPPED = "rows held out of its training (it may have stopped by them, which flatters it a little)"


def report(
    fitted: Fitted,
    path: str | Path,
    test: Any,
    *,
    ood: Any,
    feature_names: Sequence[str] | None,
    class_names: Sequence[str] | None,
    target_name: str | Sequence[str] | None,
    images: Any,
    title: str | None,
    overwrite: bool,
) -> Path:
    """See :func:`temperance.show.report.report`."""
    if not isinstance(fitted, Fitted):
        raise ArgumentError(f"`fitted` must be what `fit` or `load` returned; got {type(fitted).__name__}.")
    check_folder(path, overwrite)
    data, rows_words, caution = _rows(fitted, test)
    info = data.info if fitted.data is None or _tells(data.info) else fitted.data.info
    x = data.x
    predictive = fitted.predict(x)
    strange, ood_words = _strange(x, ood, info)
    elsewhere = None if strange is None else fitted.predict(strange)
    y, scaled = data.y, _scale(info, predictive)
    if scaled is not None:
        y = info.in_units(y.reshape(len(data), -1))
        predictive = AffinePredictive(_value(predictive), *scaled)
        elsewhere = None if elsewhere is None else AffinePredictive(_value(elsewhere), *scaled)
    examples, names = _examples(x, info, images, feature_names)
    request = Request(
        predictive=predictive,
        y=y,
        x=x,
        ood=elsewhere,
        ood_words=ood_words,
        examples=examples,
        feature_names=names,
        fitted=fitted,
        title=title or f"How far to trust this model: {_name(info, fitted)}",
        method_words=_method_words(fitted),
        rows_words=rows_words,
        caution=caution,
        seen=caution == _FLATTERING,
        settings={},
        class_names=class_names if class_names is not None else _class_names(info, predictive),
        target_name=target_name if target_name is not None else "y",
        extra={},
    )
    return write(path, request, overwrite)


def _rows(fitted: Fitted, test: Any) -> tuple[Data, str, str]:
    """The data to measure on, what they are, and a warning where they flatter."""
    if test is not None:
        given = Data.of(test, "test")
        if given.fingerprint() == fitted.run.get("data"):
            return given, "rows of its own training data", _FLATTERING
        return given, "test rows", ""
    if fitted.held_out is not None:
        return fitted.held_out, _STOPPED, ""
    if fitted.data is not None:
        return fitted.data, "rows of its own training data", _FLATTERING
    raise ArgumentError(
        "`test` must be given: a loaded run does not carry its data. Pass rows that the model has not seen: "
        "fitted.report(path, (x, y))."
    )


def _tells(info: DataInfo) -> bool:
    """Whether anything is known of the data: a bare pair (x, y) is taken to be like the training data."""
    return info.name != "data" or bool(info.features or info.classes or info.image_shape) or info.y_mean is not None


def _strange(x: Any, ood: Any, info: DataInfo) -> tuple[Any, str]:
    """Inputs that the model should find strange, and what they are; or none, and why."""
    if ood is not None:
        return (ood.x if isinstance(ood, Data) else ood), "the inputs given as strange"
    if not isinstance(x, Tensor):
        return None, "inputs of several tensors have no stand-in; pass `ood`"
    if not x.is_floating_point():
        return None, "whole-number inputs, such as the tokens of a text, have no stand-in; pass `ood`"
    if len(x) < _FEWEST:
        return None, "there are too few rows to make a stand-in of; pass `ood`"
    some = x[:_STRANGE]
    rng = generator(0, "report-stand-in")
    flat = some.reshape(len(some), -1)
    if flat.shape[1] < 2:
        return None, "with one column a shuffle changes nothing; pass `ood`"
    if x.dim() > 2 or info.image_shape is not None:
        shuffled = _shuffled_pixels(some, info.image_shape, rng)
        return shuffled, "a stand-in: the same images with their pixels shuffled, all in the same way"
    columns = [flat[torch.randperm(len(flat), generator=rng), k] for k in range(flat.shape[1])]
    words = "a stand-in: rows whose columns were shuffled each on its own, so that values no longer go together"
    return torch.stack(columns, 1).reshape(some.shape), words


def _shuffled_pixels(x: Tensor, shape: tuple[int, ...] | None, rng: torch.Generator) -> Tensor:
    """One permutation of the places of pixels for all images; the channels of a pixel stay together."""
    channels = shape[0] if shape is not None and len(shape) == 3 else x.shape[1] if x.dim() == 4 else 1
    flat = x.reshape(len(x), channels, -1)
    return flat[:, :, torch.randperm(flat.shape[2], generator=rng)].reshape(x.shape)


def _scale(info: DataInfo, predictive: Predictive) -> tuple[Tensor, Tensor] | None:
    """Shift and scale back to the original units of standardised real targets."""
    if info.y_mean is None or info.y_scale is None or not isinstance(predictive, ValuePredictive):
        return None
    if not isinstance(getattr(predictive, "likelihood", None), RealLikelihood):
        return None
    return info.y_mean, info.y_scale


def _value(predictive: Predictive) -> ValuePredictive:
    assert isinstance(predictive, ValuePredictive)
    return predictive


def _examples(x: Any, info: DataInfo, images: Any, names: Sequence[str] | None) -> tuple[Any, Sequence[str] | None]:
    """The rows as people know them: pictures, or columns in their original units."""
    if images is not None:
        return images, None
    if not isinstance(x, Tensor):
        return None, None
    if names is None and info.image_shape is not None:
        pictures = as_images(x, info.image_shape)
        if pictures is not None:
            return pictures, None
    if x.dim() == 4 or (x.dim() == 3 and x.is_floating_point()):
        return (x if x.dim() == 3 or x.shape[1] in (1, 3, 4) or x.shape[3] in (1, 3, 4) else None), None
    if x.dim() != 2:
        return None, None
    shown = x.detach().cpu()
    if info.x_mean is not None and info.x_scale is not None and len(info.x_mean) == x.shape[1]:
        shown = shown * info.x_scale.to(shown) + info.x_mean.to(shown)
    if names is None and len(info.features) == x.shape[1]:
        names = info.features
    return shown, names


def _class_names(info: DataInfo, predictive: Predictive) -> Sequence[str] | None:
    if not info.classes:
        return None
    columns = predictive.mean().shape[1]
    return info.classes if len(info.classes) == columns or (columns == 1 and len(info.classes) == 2) else None


def _name(info: DataInfo, fitted: Fitted) -> str:
    return info.name if info.name != "data" else _method(fitted)


def _method(fitted: Fitted) -> str:
    return type(fitted.posterior if fitted.method is None else fitted.method).__name__


def _method_words(fitted: Fitted) -> str:
    rows = fitted.info.data.get("rows")
    learned = f" from {rows:,} rows" if isinstance(rows, int) else ""
    return f"A network of {fitted.target.layout.size:,} parameters, learned by {_method(fitted)}{learned}."
