"""No prediction makes a tensor of many θ's, whatever the number of rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import temperance as tp

X = torch.randn(40, 60, generator=torch.Generator().manual_seed(0))
Y = torch.arange(40) % 3


class Largest(TorchDispatchMode):
    """Sees the size of the largest tensor that any operation gave, in other memory than that of those to ``ignore``."""

    def __init__(self, ignore: Sequence[torch.Tensor] = ()) -> None:
        super().__init__()
        self.numbers, self.known = 0, {value.untyped_storage().data_ptr() for value in ignore}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for value in tree_leaves(made):
            if isinstance(value, torch.Tensor) and value.untyped_storage().data_ptr() not in self.known:
                self.numbers = max(self.numbers, value.untyped_storage().nbytes() // value.element_size())
        return made


@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("curvature", [tp.KFAC(), tp.Diagonal()], ids=lambda c: type(c).__name__)
def test_a_linearised_prediction_makes_no_tensor_of_several_thetas(curvature, learns):
    network = tp.nn.MLP(60, [200, 200], 1 if learns else 3)
    target = tp.Target(network, tp.Normal() if learns else tp.Categorical(), tp.GaussianPrior(1.0))
    y = torch.linspace(-1, 1, 40) if learns else Y
    fitted = tp.fit(target, tp.Laplace(tp.MAP(), curvature=curvature), (X, y), epochs=1)
    size = target.layout.size
    assert size > 50_000
    with Largest() as seen:
        fitted.predict(X[:2]).mean()
    assert 0 < seen.numbers <= 2 * size
