"""What the tests of the page share: predictives that need no training, and a reader of HTML."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import torch

from temperance import Bernoulli, Categorical, HeteroscedasticNormal, Normal, Poisson, StudentT
from temperance.predict import Predictive
from temperance.predict.calibrated import from_outputs

VOID = {"meta", "img", "br", "hr"}


def random(kind: str, rows: int, members: int = 4, seed: int = 0) -> tuple[Predictive, torch.Tensor]:
    """A predictive of random outputs, and a truth to go with it."""
    rng = torch.Generator().manual_seed(seed)
    likelihood, columns = {
        "classes": (Categorical(), 3),
        "yes": (Bernoulli(), 1),
        "labels": (Bernoulli(), 4),
        "normal": (Normal(scale=1.0), 1),
        "outputs": (Normal(scale=1.0), 3),
        "heteroscedastic": (HeteroscedasticNormal(), 2),
        "student": (StudentT(df=2.0, scale=1.0), 1),
        "counts": (Poisson(), 1),
    }[kind]
    outputs = 0.3 * torch.randn(members, rows, columns, generator=rng) + torch.randn(rows, columns, generator=rng)
    predictive = from_outputs(outputs, likelihood)
    if kind == "classes":
        return predictive, torch.multinomial(outputs.softmax(-1).mean(0), 1, generator=rng)[:, 0]
    if kind in ("yes", "labels"):
        return predictive, torch.bernoulli(outputs.sigmoid().mean(0), generator=rng).long()
    if kind == "counts":
        return predictive, torch.poisson(outputs.exp().mean(0), generator=rng)
    real = outputs[..., :1] if kind == "heteroscedastic" else outputs
    return predictive, real.mean(0) + torch.randn(real.shape[1:], generator=rng)


class Page(HTMLParser):
    """Elements in order, with what the tests look at."""

    def __init__(self, path: Path) -> None:
        super().__init__(convert_charrefs=True)
        self.text = path.read_text(encoding="utf-8")
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(self.text)
        self.close()
        assert self.open == [], self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, tag
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.append(data)

    @property
    def said(self) -> str:
        """All text, in one line."""
        return " ".join(" ".join(self.words).replace("\u00a0", " ").split())

    def all(self, *names: str) -> list[dict[str, str | None]]:
        """The attributes of all elements of these names."""
        return [attributes for tag, attributes in self.tags if tag in names]
