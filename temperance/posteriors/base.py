"""What a posterior is: something that can be sampled, and that names the settings of θ prediction averages over."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from temperance.core.checks import check_count
from temperance.core.encoding import Value
from temperance.core.seeds import check_seed

Buffers = dict[str, Tensor]
"""Running statistics (batch norm) that belong to a setting of the weights; stacked, S × ..., for several."""


@dataclass(frozen=True)
class Nodes:
    """The weighted settings of θ over which a prediction is averaged.

    ``fetch(start, stop)`` gives θ (S × P) and stacked buffers of a range of them: they are made when needed, so memory
    is that of the range, not of all.
    """

    weights: Tensor
    fetch: Callable[[int, int], tuple[Tensor, Buffers]]

    def __len__(self) -> int:
        return len(self.weights)


class Posterior(Value, ABC):
    """A distribution over θ. ``finite`` says that it has finitely many settings, all of which prediction uses."""

    finite: ClassVar[bool] = False
    predicts: ClassVar[str] = "network"
    """How predictions are made unless told: through the network at each draw, or through its linearisation."""

    @property
    @abstractmethod
    def size(self) -> int:
        """P, the length of θ."""

    @abstractmethod
    def nodes(self, n: int | None = None, seed: int = 0) -> Nodes:
        """What prediction averages over: all there is, or about ``n`` draws where there is a choice."""

    @abstractmethod
    def _sample(self, n: int, rng: torch.Generator) -> Tensor:
        """n independent draws, n × P."""

    @property
    def most_nodes(self) -> int | None:
        """How many nodes there can be at most; ``None``: as many as are asked for."""
        return None

    def retarget(self, target: Any) -> Any:
        """The target that this posterior belongs to: the one given, unless a prior or a noise level was chosen."""
        return target

    def sample(self, n: int, seed: int | None = None) -> Tensor:
        """n independent draws of θ, n × P. Without a seed they differ from call to call."""
        check_count(n, "n")
        rng = torch.Generator()
        rng.manual_seed(int(torch.randint(0, 2**62, ())) if seed is None else check_seed(seed))
        return self._sample(n, rng)
