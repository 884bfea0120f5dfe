"""Rows as people have them: pairs, dicts, named tuples."""

from __future__ import annotations

from collections import UserDict
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import temperance as tp
from temperance.core.errors import DataError, NetworkError
from temperance.data import Data

IDS = torch.arange(24).reshape(8, 3)
MASK = torch.ones(8, 3)
Y = torch.tensor([0, 1] * 4)


class Row(NamedTuple):
    ids: Tensor
    mask: Tensor
    label: Tensor


class Short(NamedTuple):
    target: Tensor
    image: Tensor


class Rows(Dataset[Any]):
    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __len__(self) -> int:
        return 8

    def __getitem__(self, k: int) -> Any:
        if self.kind == "named":
            return Row(IDS[k], MASK[k], Y[k])
        if self.kind == "short":
            return Short(Y[k], MASK[k])
        if self.kind == "pair of names":
            return {"ids": IDS[k], "mask": MASK[k]}, int(Y[k])
        if self.kind == "lists":
            return {"ids": IDS[k].tolist(), "mask": MASK[k].tolist(), "labels": int(Y[k]), "text": f"row {k}"}
        return {"ids": IDS[k], "mask": MASK[k], "labels": Y[k]}


@pytest.mark.parametrize("kind", ["named", "dicts", "lists", "pair of names"])
@pytest.mark.parametrize("loader", [False, True])
def test_named_parts_are_inputs_by_name_and_a_target(kind: str, loader: bool) -> None:
    rows = Rows(kind)
    data = Data.of(DataLoader(rows, batch_size=4) if loader else rows)
    assert len(data) == 8
    assert isinstance(data.x, dict)
    assert list(data.x) == ["ids", "mask"]
    assert torch.equal(data.x["ids"], IDS)
    torch.testing.assert_close(data.x["mask"].float(), MASK)
    assert torch.equal(data.y, Y)
    assert torch.equal(data.subset([3]).x["ids"], IDS[3:4])  # type: ignore[call-overload, index]


def test_a_named_pair_is_told_by_its_names() -> None:
    data = Data.of(Rows("short"))
    assert torch.equal(data.y, Y)
    assert torch.equal(data.x, MASK)  # type: ignore[arg-type]


def test_a_list_of_dicts_and_the_batches_of_a_tokeniser() -> None:
    rows = [Rows("lists")[k] for k in range(8)]
    assert torch.equal(Data.of(rows).x["ids"], IDS)  # type: ignore[call-overload, index]

    def collate(items: list[Any]) -> UserDict[str, Any]:  # Hugging Face's BatchEncoding is of this kind
        return UserDict({"ids": torch.stack([item["ids"] for item in items]), "label": torch.tensor([1] * len(items))})

    data = Data.of(DataLoader(Rows("dicts"), batch_size=2, collate_fn=collate))
    assert torch.equal(data.x["ids"], IDS)  # type: ignore[call-overload, index]


def test_what_cannot_be_guessed_is_told_by_the_rule() -> None:
    with pytest.raises(DataError, match=r"one is called labels, label, .*got the names \['ids'\]"):
        Data.of([{"ids": [1]}] * 3).y  # noqa: B018
    with pytest.raises(DataError, match=r"got the names \['ids', 'label', 'labels'\]"):
        Data.of([{"ids": [1], "label": 0, "labels": 0}] * 3).y  # noqa: B018
    with pytest.raises(DataError, match=r"others the inputs; got tensors in \['label'\] alone"):
        Data.of([{"text": "a", "label": 0}] * 3).y  # noqa: B018


def test_rows_of_several_lengths_are_refused_with_the_remedy() -> None:
    rows = [{"ids": [1] * (2 + k % 2), "label": 0} for k in range(4)]
    with pytest.raises(DataError, match=r"rows that go together in a batch.*Pad them to one length"):
        tp.fit(tp.Target(ByKeyword(), tp.Categorical(), tp.GaussianPrior(1.0)), tp.MAP(), rows, steps=1)


class ByKeyword(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(24, 4), nn.Linear(4, 2)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        return self.head((self.embed(ids) * mask.unsqueeze(-1)).mean(1))


class ByDict(ByKeyword):
    def forward(self, batch: dict[str, Tensor]) -> Tensor:  # type: ignore[override]
        return super().forward(batch["ids"], batch["mask"])


class ByOtherNames(ByKeyword):
    def forward(self, words: Tensor, weights: Tensor) -> Tensor:
        return super().forward(words, weights)


@pytest.mark.parametrize(
    "method",
    [
        tp.MAP(lr=1e-2),
        tp.Ensemble(tp.MAP(lr=1e-2), 2),
        tp.Laplace(tp.MAP(lr=1e-2), tune=None),
        tp.Collect(tp.HMC(step_size=0.05, length=3), last=3),
        tp.Subspace(tp.Collect(tp.HMC(step_size=0.05, length=3), last=3), tp.RandomBasis(2)),
        tp.SVGD(2, lr=1e-2),
    ],
    ids=lambda m: type(m).__name__,
)
def test_a_network_that_takes_one_dict_is_the_one_that_takes_keywords(method: Any) -> None:
    made = []
    for kind in (ByKeyword, ByDict):
        torch.manual_seed(0)
        target = tp.Target(kind(), tp.Categorical(), tp.GaussianPrior(1.0))
        fitted = tp.fit(target, method, Rows("dicts"), steps=6, seed=0, progress=False)
        made.append(fitted.predict({"ids": IDS, "mask": MASK}).probs)
    torch.testing.assert_close(*made)


def test_names_that_fit_no_signature_are_refused_with_the_rule() -> None:
    target = tp.Target(ByOtherNames(), tp.Categorical(), tp.GaussianPrior(1.0))
    with pytest.raises(NetworkError, match=r"by keyword where its keys.*whole where.*\['ids', 'mask'\].*words"):
        tp.fit(target, tp.MAP(), Rows("dicts"), steps=1, progress=False)
    one = tp.Target(nn.Linear(3, 2), tp.Categorical(), tp.GaussianPrior(1.0))
    with pytest.raises(NetworkError, match=r"cannot take inputs of shape.*by keyword where its keys"):
        tp.fit(one, tp.MAP(), ({"rows": MASK}, Y), steps=1, progress=False)
    tp.fit(one, tp.MAP(), ({"input": MASK}, Y), steps=1, progress=False)
