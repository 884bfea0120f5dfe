"""The page's part on classes and on yes/no labels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from temperance.core.errors import ArgumentError
from temperance.core.outcomes import Categories
from temperance.predict import CategoryPredictive, Predictive, scores
from temperance.predict.scores.classification import as_float64
from temperance.show import plot
from temperance.show.plot.calibration import consistency_band
from temperance.show.report.chapter import CHAPTERS, PASSED_ON, Chapter, finite
from temperance.show.report.figures import figure
from temperance.show.report.html import Markup, Section, Tile, beside, tag
from temperance.show.report.request import Request
from temperance.show.report.words import count, kept_promise, names_or, number, percent, share_interval

_BINS = 10
_SURE = (0.85, 0.95)  # "about 90 % sure"
_ENOUGH = 20
_CLASSES_SHOWN = 3


class ClassPart(Chapter):
    """Of classes; of yes/no labels each label of each row counts as an answer."""

    unit = "nats"
    doubt_words = "entropy"
    wrong_heading = "Most confidently wrong"
    wrong_words = "Wrong answers, the surest first. Some may be errors of the data rather than of the model."

    def __init__(self, predictive: CategoryPredictive, y: Any, class_names: Sequence[str] | None) -> None:
        super().__init__(predictive)
        self.log_prob = finite(predictive.log_prob(y), "log-probabilities of `y`")  # checks y too
        self.probs = finite(predictive.probs, "predicted probabilities")
        self.labels = not predictive.exclusive or self.probs.shape[1] == 1
        self.truth = as_float64("y", y if isinstance(y, Tensor) else torch.as_tensor(y)).reshape(self.rows, -1).long()
        columns = self.probs.shape[1]
        if class_names is not None and len(class_names) != columns and not (columns == 1 and len(class_names) == 2):
            raise ArgumentError(f"`class_names` must name each of the {columns} classes; got {len(class_names)} names.")
        if self.labels and columns == 1:
            self.names = (
                ["no", "yes"] if class_names is None or len(class_names) == 1 else [str(n) for n in class_names]
            )
        else:
            self.names = names_or(class_names, columns, "label" if self.labels else "class")
        if self.labels:
            yes = self.probs.reshape(-1)
            self.pairs, self.right_class = torch.stack([1 - yes, yes], 1), self.truth.reshape(-1)
        else:
            self.pairs, self.right_class = self.probs, self.truth[:, 0]
        self.confidence, self.said = self.pairs.max(1)
        self.correct = (self.said == self.right_class).double()
        self.error = 1 - self.correct.view(self.rows, -1).mean(1)
        spread = self.spread(predictive)
        self.doubt, self.epistemic, self.aleatoric = (spread[k] for k in ("doubt", "epistemic", "aleatoric"))

    def spread(self, predictive: Predictive) -> dict[str, Tensor]:
        """See :class:`Chapter`: entropy = aleatoric + mutual information."""
        return {
            "doubt": finite(predictive.entropy(), "entropies").clamp(min=0),
            "epistemic": finite(predictive.mutual_information(), "mutual informations").clamp(min=0),
            "aleatoric": finite(predictive.aleatoric(), "entropies").clamp(min=0),
        }

    @property
    def answers(self) -> int:
        """Rows, times labels where there are several."""
        return len(self.correct)

    @cached_property
    def ece(self) -> scores.CalibrationError:
        """The calibration error with its interval."""
        return scores.ece(self.pairs, self.right_class, resamples=1000 if self.answers <= 20_000 else 100)

    @cached_property
    def accuracy(self) -> float:
        """The share of right answers."""
        return float(self.correct.mean())

    @property
    def _several(self) -> str:
        many = self.labels and self.probs.shape[1] > 1
        return f" Each of the {self.probs.shape[1]} yes/no labels counts as an answer of its own." if many else ""

    def _sure(self) -> tuple[int, int, float, str]:
        """How many answers of a certain sureness there are, how many were right, what was promised, and its words."""
        windows = (
            (_SURE, "about 90 % sure of (85 to 95 %)"),
            ((0.95, 1.01), "at least 95 % sure of"),
            ((0.0, 1.01), "asked for"),
        )
        found = [((self.confidence >= low) & (self.confidence < high), words) for (low, high), words in windows]
        inside, words = next((pair for pair in found if int(pair[0].sum()) >= _ENOUGH), found[-1])
        size, hits = int(inside.sum()), int(self.correct[inside].sum())
        return size, hits, float(self.confidence[inside].mean()), words

    def tiles(self) -> list[Tile]:
        """See :class:`Chapter`."""
        low, high = share_interval(int(self.correct.sum()), self.answers)
        size, hits, promised, words = self._sure()
        after = self.risk_at(1 - PASSED_ON)
        return [
            Tile(percent(self.accuracy), "of answers right", self.sure_to(percent(low), percent(high))),
            Tile(f"{hits:,} of {size:,}", "right where it was " + words.replace(" of (", " (").removesuffix(" of")
                 if words != "asked for" else "right of all", f"promised: {percent(promised)}"),
            Tile(number(self.ece.value, 2), "calibration error (ECE)",
                 "; ".join(filter(None, (self._ece_between(2), "0 is perfect")))),
            Tile(percent(after), f"errors after passing on {percent(PASSED_ON)}",
                 f"before: {percent(1 - self.accuracy)}"),
        ]  # fmt: skip

    def sentences(self) -> list[str]:
        """See :class:`Chapter`."""
        low, high = share_interval(int(self.correct.sum()), self.answers)
        told = [
            f"It was right in {int(self.correct.sum()):,} of {count(self.answers, 'answer')} "
            f"({percent(self.accuracy)})."
            + (
                ""
                if self.seen
                else f" With so many answers the true rate lies between {percent(low)} and {percent(high)}, at 95 % "
                "confidence."
            )
            + self._several
        ]
        size, hits, promised, words = self._sure()
        verdict = "" if self.seen else f": {kept_promise(hits, size, promised)}"
        told.append(
            f"Of 100 answers that it was {words}, {round(100 * hits / size)} were right ({hits:,} of {size:,}); it had "
            f"promised {round(100 * promised)}{verdict}."
        )
        if self.seen:
            return told
        told.append(self._honesty())
        passed = self.passing_on("error rate")
        return told if passed is None else [*told, passed]

    def _honesty(self) -> str:
        claimed = float(self.confidence.mean())
        chance = 1.96 * math.sqrt(float((self.confidence * (1 - self.confidence)).sum())) / self.answers
        gap = self.accuracy - claimed
        both = f"on average it claimed to be {percent(claimed)} sure and was right {percent(self.accuracy)} of the time"
        if abs(gap) <= chance + 1e-9:
            return f"As far as this many answers can tell its confidence is honest: {both}."
        if gap < 0:
            advice = " Calibrate it before use." if self.advise else ""
            return f"It is too sure of itself: {both}, a gap that chance does not explain.{advice}"
        advice = "; calibration would make it sharper" if self.advise else ""
        return f"It is too modest: {both}. It can be trusted more than it claims{advice}."

    def _ece_between(self, digits: int = 3) -> str:
        return self.sure_to(number(self.ece.low, digits), number(self.ece.high, digits))

    def sections(self) -> list[Section]:
        """See :class:`Chapter`."""
        curve = scores.reliability_curve(self.pairs, self.right_class, _BINS)
        low, high = consistency_band(curve.confidence, curve.count)
        told = (
            "Answers are put together by how sure the model said it was; each point shows how often such answers were "
            "right. On the dashed line it is perfectly honest; below it, too sure of itself; above it, too modest. "
            + (
                "These answers were trained on, so no point is evidence. "
                if self.seen
                else "Grey bars are where 95 % of honest models would land with so few answers, so only points outside "
                "them count as evidence. "
            )
            + "Small numbers count the answers."
            + self._several
        )
        outside = sum(not a <= acc <= b for a, acc, b in zip(low.tolist(), curve.accuracy, high.tolist(), strict=True))
        seen = "" if self.seen else f" {outside} of {len(curve.count)} points lie outside their bar."
        drawn = figure(
            "reliability",
            lambda ax: plot.reliability(self.pairs, self.right_class, ax, bins=_BINS),
            label=f"Reliability diagram: how often answers were right against how sure the model was.{seen}",
            caption=f"Reliability.{seen} Expected calibration error {number(self.ece.value)}"
            + (f" ({self._ece_between()})." if self._ece_between() else "."),
            head=("said", "right", "honest: from", "to", "answers"),
            rows=[
                (percent(c), percent(a), percent(lo), percent(hi), f"{n:,}")
                for c, a, lo, hi, n in zip(
                    curve.confidence, curve.accuracy, low.tolist(), high.tolist(), curve.count, strict=True
                )
            ],
        )
        return [
            Section("calibration", "Can its confidence be believed?", (beside((*self.whose, told), drawn),)),
            self.selective("error rate"),
        ]

    def _guessing(self) -> tuple[float, float]:
        """Log-loss and accuracy of one who knows how frequent each answer is here, and nothing else."""
        if self.labels:
            yes = self.truth.double().mean(0)
            shares = torch.stack([1 - yes, yes])
        else:
            shares = torch.bincount(self.right_class).double().unsqueeze(1) / self.rows
        return float(-torch.special.xlogy(shares, shares).sum()), float(shares.amax(0).mean())

    def scores(self) -> list[tuple[str, str, str]]:
        """See :class:`Chapter`."""
        guess, frequent = self._guessing()
        found = [
            (
                "accuracy",
                percent(self.accuracy, 2),
                f"the share of right answers; always the most frequent one: {percent(frequent, 2)}",
            ),
            (
                "log-loss",
                number(-float(self.log_prob.mean())),
                f"nats a row, less is better; guessing by how frequent each is: {number(guess)}",
            ),
            ("Brier score", number(scores.brier(self.pairs, self.right_class)), "squared error of the probabilities"),
            ("ECE", number(self.ece.value), "mean gap between confidence and accuracy, 15 bins"),
        ]
        if 0 < self.accuracy < 1:
            detected = scores.error_detection(1 - self.confidence, self.correct)
            found.append(
                ("AUROC of errors", number(detected.auroc), "how well doubt ranks errors first; 0.5 is guessing")
            )
        return found

    def wrong(self, most: int) -> list[int]:
        """See :class:`Chapter`."""
        worst = torch.where(self.correct == 0, self.confidence, -1.0).view(self.rows, -1).amax(1)
        order = worst.argsort(descending=True, stable=True)[:most]
        return [int(k) for k in order if worst[k] > 0]

    def answer(self, row: int) -> Markup:
        """See :class:`Chapter`."""
        if self.labels and self.probs.shape[1] > 1:
            return self._labels_of(row)
        probs = self.pairs[row]
        best = probs.argsort(descending=True, stable=True)[:_CLASSES_SHOWN].tolist()
        truth = int(self.right_class[row])
        shown = best if truth in best else [*best[: _CLASSES_SHOWN - 1], truth]
        right = best[0] == truth
        verdict = tag("span", "right" if right else "wrong", class_="good" if right else "bad")
        told = tag("p", "said ", tag("strong", self.names[best[0]]), ", was ", tag("strong", self.names[truth]), ": ",
                   verdict)  # fmt: skip
        return Markup(told + bars([(self.names[k], float(probs[k])) for k in shown]))

    def _labels_of(self, row: int) -> Markup:
        truth = self.truth[row]
        order = (self.probs[row] - truth.double()).abs().argsort(descending=True)[:_CLASSES_SHOWN].tolist()
        shown = [(f"{self.names[k]} ({'yes' if truth[k] else 'no'})", float(self.probs[row, k])) for k in order]
        return Markup(tag("p", "probability of yes, in brackets what was true:") + bars(shown))


def bars(shares: Sequence[tuple[str, float]]) -> Markup:
    """Probabilities as bars, with their numbers."""
    lines = [
        tag(
            "li",
            tag("span", name, class_="name"),
            tag("span", tag("span", class_="fill", style=f"width:{100 * share:.1f}%"), class_="track"),
            tag("span", percent(share), class_="much"),
        )
        for name, share in shares
    ]
    return tag("ul", *lines, class_="bars")


def chapter(request: Request) -> ClassPart:
    """Classes or labels of a page."""
    assert isinstance(request.predictive, CategoryPredictive)
    return ClassPart(request.predictive, request.y, request.class_names)


CHAPTERS.register(Categories, chapter)
