"""The page's part on the two kinds of uncertainty, at home and elsewhere."""

from __future__ import annotations

from torch import Tensor

from temperance.core.errors import ArgumentError
from temperance.predict import Predictive, scores
from temperance.show import plot
from temperance.show.report.chapter import CHAPTERS, Chapter, quantile_rows
from temperance.show.report.figures import figure
from temperance.show.report.html import Markup, Section, table, tag
from temperance.show.report.words import number, percent

_MEANINGS = {
    "epistemic": ("Epistemic", "what the model has not learned; more data of the same kind would remove it"),
    "aleatoric": ("Aleatoric", "noise in what is predicted; no amount of data removes it"),
    "doubt": ("Both together", "what rows are ranked by"),
}
_SINGLE = (
    "This model is a single setting of the weights, as ordinary training leaves it. It has no members that could "
    "disagree, so its epistemic uncertainty is zero by construction: not because it knows, but because it cannot say "
    "what it does not know. An ensemble, a Laplace approximation or a sampler would measure it."
)


class Doubt:
    """Uncertainty of the rows and, where there are any, of strange inputs."""

    def __init__(self, part: Chapter, ood: Predictive | None, ood_words: str) -> None:
        if ood is not None and CHAPTERS.of(ood.outcome) is not CHAPTERS.of(part.predictive.outcome):
            raise ArgumentError(
                f"`ood` must be a predictive of the same kind as `predictive`; got {type(ood).__name__}."
            )
        self.part, self.words = part, ood_words
        self.home: dict[str, Tensor] = {"epistemic": part.epistemic, "doubt": part.doubt}
        if len(part.aleatoric):
            self.home["aleatoric"] = part.aleatoric
        self.away = None if ood is None else part.spread(ood)

    def auroc(self, kind: str) -> float:
        """How well one kind of uncertainty tells strange inputs from the rows."""
        assert self.away is not None
        return scores.auroc(self.home[kind], self.away[kind])

    def epistemic_share(self) -> float:
        """The epistemic part of all uncertainty: of entropies for classes, of variances for values."""
        known, noise = self.part.epistemic, self.part.aleatoric
        if not len(noise):
            return float("nan")
        if self.part.unit == "nats":
            whole = float(self.part.doubt.mean())
            return float(known.mean()) / whole if whole > 0 else float("nan")
        both = float((known.square() + noise.square()).mean())
        return float(known.square().mean()) / both if both > 0 else float("nan")

    def sentences(self) -> list[str]:
        """For the summary."""
        told = []
        share = self.epistemic_share()
        if self.part.single:
            told.append("It cannot say what it does not know: it is a single setting of the weights (see below).")
        elif share == share:
            told.append(
                f"Of its uncertainty on these rows {percent(share, 0)} is about the model itself, which more data "
                "would remove; the rest is noise in what it predicts."
            )
        if self.away is not None:
            area = self.auroc("doubt")
            judged = "It notices strange inputs" if area >= 0.8 else (
                "It notices strange inputs only in part" if area >= 0.6 else "It does not notice strange inputs"
            )  # fmt: skip
            told.append(
                f"{judged}: shown {self.words}, it is more doubtful than on an ordinary row in "
                f"{round(100 * area)} of 100 comparisons (AUROC {number(area)}; 50 of 100 would be guessing)."
            )
        return told

    def section(self) -> Section:
        """The histograms."""
        lines: list[object] = [
            tag(
                "p",
                "Uncertainty has two sources. ",
                tag("strong", "Epistemic"),
                " uncertainty is the model's own: settings of the weights that fit the data equally well disagree. ",
                tag("strong", "Aleatoric"),
                " uncertainty is noise in the world: even the right model would not be sure.",
            )
        ]
        if self.part.single:
            lines.append(tag("p", _SINGLE, class_="caution"))
        if "aleatoric" not in self.home:
            lines.append(tag("p", "The noise has no finite variance here, so only the epistemic part is drawn."))
        if self.away is not None:
            lines.append(
                tag("p", f"“Strange” rows are {self.words}. A model that knows its limits is more uncertain there.")
            )
        elif self.words:
            lines.append(tag("p", f"No strange inputs are shown: {self.words}."))
        kinds = [
            k for k in ("epistemic", "aleatoric") if k in self.home and not (k == "epistemic" and self.part.single)
        ]
        drawn = [self._histogram(kind) for kind in kinds]
        lines.append(tag("div", *drawn, class_="figures"))
        if self.away is not None:
            away = self.away
            rows = [
                (_MEANINGS[kind][0], number(self.auroc(kind)), _MEANINGS[kind][1])
                for kind in (*kinds, "doubt")
                if kind in away
            ]
            lines.append(table("Telling strange rows from ordinary ones (AUROC: 0.5 guessing, 1 perfect)",
                               ("uncertainty", "AUROC", "what it is"), rows))  # fmt: skip
        return Section("uncertainty", "What it knows that it does not know", tuple(lines))

    def _histogram(self, kind: str) -> Markup:
        name, meaning = _MEANINGS[kind]
        groups = {"ordinary rows": self.home[kind]}
        if self.away is not None and kind in self.away:
            groups["strange rows"] = self.away[kind]
        told = f" AUROC {number(self.auroc(kind))}." if len(groups) == 2 else ""
        nats = self.part.unit == "nats"
        measure = f"{name.lower()} uncertainty ({'nats' if nats else 'standard deviation'})"
        return figure(
            kind,
            lambda ax: plot.uncertainty_histogram(groups, ax, xlabel=measure),
            label=f"Histogram of {name.lower()} uncertainty of {' and '.join(groups)}.{told}",
            caption=f"{name} uncertainty: {meaning}.{told}",
            head=("rows", "5 % below", "25 % below", "median", "75 % below", "95 % below"),
            rows=quantile_rows(groups),
            height=3.2,
        )
