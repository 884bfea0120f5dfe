"""The page's part on real values and counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from temperance.core.errors import ArgumentError
from temperance.core.outcomes import Quantities
from temperance.predict import Predictive, ValuePredictive, scores
from temperance.show import plot
from temperance.show.plot.calibration import LEVELS, consistency_band, observed_coverage, values_of
from temperance.show.report.chapter import CHAPTERS, PASSED_ON, Chapter, finite
from temperance.show.report.figures import figure
from temperance.show.report.html import Markup, Section, Tile, table, tag
from temperance.show.report.request import Request
from temperance.show.report.words import count, kept_promise, number, percent, share_interval

LEVEL = 0.9
_POINTS = 150


class ValuePart(Chapter):
    """Of real values and counts. Of several outputs the first is drawn and ranked by; a table has all of them."""

    doubt_words = "the width of their 90 % intervals"
    wrong_heading = "Furthest from its own intervals"
    wrong_words = "Rows whose truth lay farthest from the prediction, in half-widths of its 90 % interval."

    def __init__(self, predictive: ValuePredictive, y: Any, target_name: str | Sequence[str]) -> None:
        super().__init__(predictive)
        self.values = predictive
        self.log_prob = finite(predictive.log_prob(y), "log-densities of `y`")
        self.truth = values_of(predictive, y)
        self.mean = finite(predictive.mean(), "predicted means")
        outputs = self.mean.shape[1]
        names = [target_name] if isinstance(target_name, str) else [str(name) for name in target_name]
        if len(names) != outputs and isinstance(target_name, str) and outputs > 1:
            names = [f"{target_name} {k + 1}" for k in range(outputs)]
        if len(names) != outputs:
            raise ArgumentError(f"`target_name` must name each of the {outputs} outputs; got {len(names)} names.")
        self.names = names
        self.name = names[0]
        self.unit = f"units of {self.name}"
        low, high = predictive.interval(LEVEL)
        self.low, self.high = finite(low, "interval ends"), finite(high, "interval ends")
        self.covered = ((self.low <= self.truth) & (self.truth <= self.high)).double()
        self.error = (self.truth - self.mean)[:, 0].abs()
        spread = self.spread(predictive, (self.low, self.high))
        self.doubt, self.epistemic = spread["doubt"], spread["epistemic"]
        self.aleatoric = spread.get("aleatoric", torch.empty(0))

    @property
    def counts(self) -> bool:
        """Whether whole numbers are predicted."""
        return self.values.outcome.whole

    def spread(self, predictive: Predictive, ends: tuple[Tensor, Tensor] | None = None) -> dict[str, Tensor]:
        """See :class:`Chapter`: standard deviations of the members' means, and of the noise."""
        assert isinstance(predictive, ValuePredictive)
        low, high = predictive.interval(LEVEL) if ends is None else ends
        found = {
            "doubt": finite((high - low)[:, 0], "interval widths"),
            "epistemic": finite(predictive.epistemic_std()[:, 0], "epistemic standard deviations"),
        }
        noise = predictive.aleatoric_variance()[:, 0].detach().double().cpu()
        if bool(noise.isfinite().all()):
            found["aleatoric"] = noise.clamp(min=0).sqrt()
        return found

    def _hits(self) -> tuple[int, int]:
        return int(self.covered.sum()), self.covered.numel()

    def tiles(self) -> list[Tile]:
        """See :class:`Chapter`."""
        hits, total = self._hits()
        low, high = share_interval(hits, total)
        before, after = self.risk_at(1.0), self.risk_at(1 - PASSED_ON)
        return [
            Tile(number(float(self.error.mean())), f"typical error in {self.name}", "mean absolute error"),
            Tile(percent(hits / total), "of values inside their 90 % intervals",
                 self.sure_to(percent(low), percent(high))),
            Tile(number(float(self.doubt.median())), "typical width of these intervals",
                 f"all values spread over {number(float(self.truth[:, 0].max() - self.truth[:, 0].min()))}"),
            Tile(number(after), f"error after passing on {percent(PASSED_ON)}", f"before: {number(before)}"),
        ]  # fmt: skip

    def sentences(self) -> list[str]:
        """See :class:`Chapter`."""
        hits, total = self._hits()
        several = f" (all {self.mean.shape[1]} outputs counted)" if self.mean.shape[1] > 1 else ""
        error = f"Its predictions of {self.name} are off by {number(float(self.error.mean()))} on average"
        spread = float((self.truth[:, 0] - self.truth[:, 0].median()).abs().mean())
        if self.rows > 1 and spread > 0:
            error += f"; always saying the median would be off by {number(spread)}"
        told = [
            error + ".",
            f"Of 100 values its 90 % intervals held {round(100 * hits / total)} ({hits:,} of {total:,}{several})"
            + ("." if self.seen else f": {self._verdict(hits, total)}"),
            f"These intervals are typically {number(float(self.doubt.median()))} wide, the narrowest "
            f"{number(float(self.doubt.min()))}, the widest {number(float(self.doubt.max()))}.",
        ]
        if self.mean.shape[1] > 1:
            told.insert(0, f"There are {self.mean.shape[1]} outputs. Plots, ranks and examples are of the first, "
                           f"{self.name}; the table of outputs has all of them.")  # fmt: skip
        passed = self.passing_on("mean absolute error")
        return told if passed is None else [*told, passed]

    def _verdict(self, hits: int, total: int) -> str:
        verdict = kept_promise(hits, total, LEVEL)
        if verdict == "as promised":
            return "as promised, as far as so many can tell."
        if verdict == "fewer than promised":
            advice = ": widen the intervals (calibrate) before use" if self.advise else ""
            return f"fewer than promised. It is too sure of itself{advice}."
        if self.counts:
            return "more than promised, as intervals of whole numbers do; they may still be wider than need be."
        return "more than promised. Its intervals are wider than they need be."

    def sections(self) -> list[Section]:
        """See :class:`Chapter`."""
        observed, total = observed_coverage(self.values, self.truth)
        low, high = consistency_band(LEVELS, [total] * len(LEVELS))
        whole = " Intervals of counts end at whole numbers, so they hold a little more than they promise."
        told = (
            "An interval of 90 % should hold 90 of 100 values, one of 50 % half of them. "
            + (
                "These values were trained on, so no point is evidence."
                if self.seen
                else "The grey band is where 95 % of honest forecasts would land with so many values; below it "
                "intervals are too narrow, above it too wide."
            )
            + (whole if self.counts else "")
        )
        covered = figure(
            "coverage",
            lambda ax: plot.coverage(self.values, self.truth, ax),
            label="Line plot: observed share of values inside predictive intervals against the promised share. "
            f"At 90 % promised, {percent(float(observed[LEVELS.index(LEVEL)]))} were observed.",
            caption=f"Interval coverage, {count(total, 'value')}.",
            head=("promised", "observed", "honest: from", "to"),
            rows=[
                tuple(percent(float(v)) for v in line)
                for line in zip(LEVELS, observed.tolist(), low.tolist(), high.tolist(), strict=True)
            ],
        )
        shown = min(_POINTS, self.rows)
        chosen = range(0, self.rows, max(1, self.rows // 20))
        scatter = figure(
            "observed",
            lambda ax: plot.predicted_observed(
                self.values, self.truth, ax, LEVEL, most=_POINTS, interval=(self.low, self.high)
            ),
            label=f"Scatter plot: observed against predicted {self.name} of {shown} rows, each with a 90 % interval.",
            caption=f"Predicted and observed {self.name}, each with its 90 % interval"
            + (f": {shown} of {self.rows:,} rows, chosen at random." if shown < self.rows else "."),
            head=("row", "predicted", "90 % from", "to", "observed"),
            rows=[
                (f"{k + 1:,}", *(number(float(v[k, 0])) for v in (self.mean, self.low, self.high, self.truth)))
                for k in list(chosen)[:20]
            ],
        )
        body: list[object] = [
            *(tag("p", text) for text in (*self.whose, told)),
            tag("div", covered, scatter, class_="figures"),
        ]
        if self.mean.shape[1] > 1:
            body.append(self._outputs())
        return [
            Section("calibration", "Can its intervals be believed?", tuple(body)),
            self.selective("mean absolute error"),
        ]

    def _outputs(self) -> Markup:
        rows = [
            (
                name,
                number(scores.rmse(self.mean[:, k], self.truth[:, k])),
                percent(float(self.covered[:, k].mean())),
                number(float((self.high - self.low)[:, k].median())),
            )
            for k, name in enumerate(self.names)
        ]
        return table("All outputs", ("output", "root mean square error", "inside 90 % intervals", "median width"), rows)

    def scores(self) -> list[tuple[str, str, str]]:
        """See :class:`Chapter`."""
        hits, total = self._hits()
        drawn = finite(self.values.sample(_samples(self.truth.numel())), "draws").reshape(-1, *self.truth.shape)
        return [
            ("RMSE", number(scores.rmse(self.mean[:, 0], self.truth[:, 0])), f"root mean square error of {self.name}"),
            ("mean absolute error", number(float(self.error.mean())), "the typical distance"),
            ("log-loss", number(-float(self.log_prob.mean())), "minus the mean log-density of the truth, in nats"),
            ("CRPS", number(scores.sample_crps(drawn[..., 0], self.truth[:, 0])), "error of the whole distribution"),
            ("coverage of 90 % intervals", percent(hits / total), "the share of values inside"),
        ]

    def wrong(self, most: int) -> list[int]:
        """See :class:`Chapter`."""
        half = ((self.high - self.low)[:, 0] / 2).clamp(min=1e-12)
        far = self.error / half
        order = far.argsort(descending=True, stable=True)[:most]
        return [int(k) for k in order if self.covered[k, 0] == 0]

    def answer(self, row: int) -> Markup:
        """See :class:`Chapter`."""
        inside = bool(self.covered[row, 0])
        low, high = float(self.low[row, 0]), float(self.high[row, 0])
        verdict = tag("span", "inside" if inside else "outside", class_="good" if inside else "bad")
        return Markup(
            tag("p", "said ", tag("strong", number(float(self.mean[row, 0]))), f", 90 % from {number(low)} to "
                     f"{number(high)}")
            + tag("p", "was ", tag("strong", number(float(self.truth[row, 0]))), ": ", verdict)
        )  # fmt: skip


def _samples(numbers: int) -> int:
    """Draws for the CRPS: 200, fewer where there are very many values."""
    return max(20, min(200, 5_000_000 // max(1, numbers)))


def chapter(request: Request) -> ValuePart:
    """Numbers of a page."""
    assert isinstance(request.predictive, ValuePredictive)
    return ValuePart(request.predictive, request.y, request.target_name)


CHAPTERS.register(Quantities, chapter)
