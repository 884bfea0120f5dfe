"""A page that says how far to trust a model.

    fitted.report("out/report", test)

writes ``out/report/index.html``: one file that needs no other and makes no request. :func:`report` makes it of what
``fit`` returned; :func:`write_report` of any predictive with its truth. matplotlib and the rest are imported when the
first page is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from temperance.run.fitted import Fitted, register_reporter

if TYPE_CHECKING:
    from temperance.predict import Predictive


def write_report(
    path: str | Path,
    *,
    predictive: Predictive,
    y: Any,
    x: Any = None,
    ood: Predictive | None = None,
    ood_words: str = "inputs from elsewhere",
    examples: Any = None,
    feature_names: Sequence[str] | None = None,
    fitted: Fitted | None = None,
    title: str = "How far to trust this model",
    method_words: str = "",
    rows_words: str = "rows that it had not seen",
    caution: str = "",
    notes: Sequence[str] = (),
    calibration_words: str = "",
    advise: bool = True,
    settings: Mapping[str, object] | None = None,
    class_names: Sequence[str] | None = None,
    target_name: str | Sequence[str] = "y",
    extra: Mapping[str, object] | None = None,
    overwrite: bool = False,
) -> Path:
    """Write the report of a predictive and what came true; returns the path of its ``index.html``.

    Args:
        path: a folder; it is made. One that holds other things is refused unless ``overwrite`` (and even then nothing
            but ``index.html`` is written); an earlier report is replaced, in one step.
        predictive: of N rows.
        y: what came true, N rows.
        x: the inputs of these rows, at which chains are traced where ``fitted`` has some.
        ood: the predictive of inputs that the model should find strange; ``None`` leaves that part out, and
            ``ood_words`` may then say why.
        ood_words: what these inputs are, in words that follow "Shown …".
        examples: the N rows as people know them, of which the most uncertain and the most wrong are shown: mappings
            from column to value, a DataFrame, a matrix (columns named by ``feature_names``), or images
            (N × H × W, N × C × H × W or N × H × W × C).
        feature_names: of the columns of a matrix.
        fitted: brings the sampler's diagnostics, settings, cost, and the references of its method.
        title: the heading.
        method_words: how the model was made, in words, under the heading.
        rows_words: what the N rows are, in words that follow "Measured on N".
        caution: a warning to show before everything else.
        notes: sentences to read first, after any warning.
        calibration_words: whose probabilities or intervals are judged, above the bullets and in the section on them.
        advise: whether to advise calibration where it is called for; ``False`` of what is calibrated already.
        settings: more lines for the table of settings.
        class_names: of the classes, or of several yes/no labels.
        target_name: of the real value or count that is predicted (several: one each).
        extra: more sections: heading → a text, several, or a mapping that becomes a table.
        overwrite: see ``path``.

    All text is escaped: names and values are shown as they are, whatever they contain.
    """
    from temperance.show.report.page import Request, write

    request = Request(
        predictive=predictive,
        y=y,
        x=x,
        ood=ood,
        ood_words=ood_words,
        examples=examples,
        feature_names=feature_names,
        fitted=fitted,
        title=title,
        method_words=method_words,
        rows_words=rows_words,
        caution=caution,
        notes=notes,
        calibration_words=calibration_words,
        advise=advise,
        settings=settings or {},
        class_names=class_names,
        target_name=target_name,
        extra=extra or {},
    )
    return write(path, request, overwrite)


def report(
    fitted: Fitted,
    path: str | Path,
    test: Any = None,
    *,
    ood: Any = None,
    feature_names: Sequence[str] | None = None,
    class_names: Sequence[str] | None = None,
    target_name: str | Sequence[str] | None = None,
    images: Any = None,
    title: str | None = None,
    overwrite: bool = False,
) -> Path:
    """Write the report of what ``fit`` returned; the same as ``fitted.report(path, test)``.

    Args:
        fitted: what ``fit`` or ``load`` returned.
        path: the folder, see :func:`write_report`.
        test: data that the model has not seen: ``Data``, a pair (x, y), a ``Dataset`` or a ``DataLoader``. Without it
            the held-out rows of the fit serve, or the training rows, and the page says so.
        ood: inputs that the model should find strange (or ``Data``). ``None`` makes a stand-in of the rows themselves:
            each column shuffled on its own, or of images one shuffle of the pixels.
        feature_names, class_names, target_name: as in :func:`write_report`; by default those that the data know.
        images: the rows as pictures; by default where the data know their shape.
        title: the heading.
        overwrite: see :func:`write_report`.
    """
    from temperance.core.checks import check_flag, check_instance, check_path
    from temperance.show.report.run import report as write_fitted

    check_path(path, "path", "file")
    check_instance(title, "title", str, "a text", optional=True)
    check_flag(overwrite, "overwrite")
    return write_fitted(
        fitted,
        path,
        test,
        ood=ood,
        feature_names=feature_names,
        class_names=class_names,
        target_name=target_name,
        images=images,
        title=title,
        overwrite=overwrite,
    )


register_reporter(report)

__all__ = ["report", "write_report"]
