"""What a page needs to know of a predictive and its truth, whatever is predicted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from temperance.core.errors import NumericalError
from temperance.core.registry import ByOutcome
from temperance.predict import Predictive, scores
from temperance.show import plot
from temperance.show.report.figures import figure
from temperance.show.report.html import Markup, Section, Tile, beside
from temperance.show.report.request import Request
from temperance.show.report.words import number, percent

SHARES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)
PASSED_ON = 0.2
FEW_ROWS = 30


class Chapter(ABC):
    """Measurements of N rows, and what is said of them."""

    rows: int
    doubt: Tensor
    """All uncertainty of each row, one number: what rows are ranked by."""
    doubt_words: str
    epistemic: Tensor
    aleatoric: Tensor
    error: Tensor
    """How wrong each row was: 0 or 1 of classes, absolute error of values."""
    unit: str
    """Of the two kinds of uncertainty."""
    seen = False
    """Whether the model was trained on these rows: then they are counted, and nothing is concluded from them."""
    advise = True
    """Whether to advise calibration."""
    calibration_words = ""
    """Whose probabilities or intervals these are, where that needs saying."""

    def __init__(self, predictive: Predictive) -> None:
        self.predictive = predictive
        self.rows = len(predictive)

    @property
    def single(self) -> bool:
        """Whether there is one setting of the weights only, and so nothing that members could disagree on."""
        return self.predictive.num_draws == 1 and float(self.epistemic.abs().max()) < 1e-9

    @property
    def whose(self) -> tuple[str, ...]:
        """The calibration words as paragraphs: one, or none."""
        return (self.calibration_words,) if self.calibration_words else ()

    def sure_to(self, low: str, high: str) -> str:
        """A confidence interval in words; of rows that were trained on there is none."""
        return "" if self.seen else f"95 % interval {low} to {high}"

    @abstractmethod
    def tiles(self) -> list[Tile]:
        """Numbers to read first."""

    @abstractmethod
    def sentences(self) -> list[str]:
        """What was found, in plain words."""

    @abstractmethod
    def sections(self) -> list[Section]:
        """The plots of this kind of predictive, with what they mean."""

    @abstractmethod
    def scores(self) -> list[tuple[str, str, str]]:
        """Name, value and meaning of each score."""

    @abstractmethod
    def spread(self, predictive: Predictive) -> dict[str, Tensor]:
        """The two kinds of uncertainty of other rows, by the names ``"epistemic"`` and ``"aleatoric"``, and all of it,
        ``"doubt"``; what is not finite is left out."""

    @abstractmethod
    def wrong(self, most: int) -> list[int]:
        """The rows on which it was most confidently wrong."""

    @abstractmethod
    def answer(self, row: int) -> Markup:
        """What was said of a row, and what came true."""

    wrong_heading: str
    wrong_words: str

    def uncertain(self, most: int) -> list[int]:
        """The rows of most doubt."""
        return [int(k) for k in self.doubt.argsort(descending=True, stable=True)[:most]]

    # ------------------------------------------------------------------ passing doubtful rows on

    def risk_at(self, share: float) -> float:
        """The mean error among the ``share`` of rows of least doubt."""
        curve = scores.risk_coverage(self.doubt, self.error)
        kept = min(self.rows, max(1, round(share * self.rows)))
        return float(curve.risk[kept - 1])

    def selective(self, error_words: str) -> Section:
        """What passing on doubtful rows buys."""
        curve = scores.risk_coverage(self.doubt, self.error)
        all_rows, kept = self.risk_at(1.0), self.risk_at(1 - PASSED_ON)
        told = (
            f"Sort the rows by {self.doubt_words}, and let a human (or a better, dearer method) answer the most "
            f"doubtful. The blue line is the {error_words} among those that the model still answers; the lower it "
            "runs below the dashed line, the better its doubt points at its own errors. The dotted line is the best "
            "that any doubt could do."
        )
        form = percent if error_words == "error rate" else number
        drawn = figure(
            "risk",
            lambda ax: plot.risk_coverage(self.doubt, self.error, ax),
            label=f"Line plot: {error_words} among the answered rows, from {form(self.risk_at(0.5))} with half of the "
            f"rows answered to {form(all_rows)} with all.",
            caption=f"Risk and coverage. Area under the curve {number(curve.aurc)}, of the oracle "
            f"{number(curve.oracle_aurc)}.",
            head=("rows answered", error_words),
            rows=[(percent(share), form(self.risk_at(share))) for share in SHARES],
        )
        found = f"With {percent(PASSED_ON)} passed on, the {error_words} goes from {form(all_rows)} to {form(kept)}."
        if all_rows == 0:
            found = "There were no errors among these rows, so there is nothing here to gain by it."
        return Section("selective", "Which rows to pass on", (beside((told, found), drawn),))

    def passing_on(self, error_words: str) -> str | None:
        """The sentence of the summary on passing rows on."""
        if self.rows < 10 or self.seen:
            return None
        shown = percent if error_words == "error rate" else number
        before, after = self.risk_at(1.0), self.risk_at(1 - PASSED_ON)
        if before <= 0:
            return None
        if after >= before:
            return (
                f"Its doubt does not point at its errors here: leaving out the {percent(PASSED_ON)} most doubtful rows "
                f"changes the {error_words} from {shown(before)} to {shown(after)}."
            )
        return (
            f"Its doubt points at its errors: if the {percent(PASSED_ON)} most doubtful rows go to somebody else, the "
            f"{error_words} on the rest falls from {shown(before)} to {shown(after)}."
        )

    def caution(self) -> str | None:
        """What a reader must know before reading numbers of so few rows."""
        if self.rows >= FEW_ROWS:
            return None
        return (
            f"There {'is' if self.rows == 1 else 'are'} only {self.rows} {'row' if self.rows == 1 else 'rows'} here: "
            "far too few to measure calibration or error rates by. Read what follows as an example of the page, not as "
            "evidence."
        )


def finite(values: Tensor, what: str) -> Tensor:
    """``values`` in float64 on the CPU; a NaN never becomes a page."""
    made = values.detach().double().cpu()
    if bool(made.isnan().any()):
        raise NumericalError(f"{what} must be numbers; got NaN in {int(made.isnan().sum())} of {made.numel()}.")
    return made


def quantile_rows(
    groups: dict[str, Tensor], levels: Sequence[float] = (0.05, 0.25, 0.5, 0.75, 0.95)
) -> list[list[str]]:
    """A histogram's table: quantiles of each group."""
    return [
        [name, *(number(float(q)) for q in torch.quantile(_some(part), torch.tensor(levels, dtype=torch.float64)))]
        for name, part in groups.items()
    ]


def _some(values: Tensor) -> Tensor:
    """torch.quantile takes at most 16 million numbers."""
    return values if len(values) <= 10**6 else values[torch.linspace(0, len(values) - 1, 10**6).long()]


CHAPTERS: ByOutcome[Callable[[Request], Chapter]] = ByOutcome(
    "chapters of the report", "temperance.show.report.chapter.CHAPTERS"
)
"""The part of the page on each outcome: of what is asked for, measured."""
