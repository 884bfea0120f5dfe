"""A method that is chosen when the problem is known."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from temperance.core.encoding import Value
from temperance.data.data import Data
from temperance.inference.base import Inference
from temperance.model.target import Target


@dataclass(frozen=True)
class Chosen:
    """A method, and why it was chosen."""

    method: Inference[Any]
    why: str


class Choice(Value, ABC):
    """What ``fit`` takes in place of a method: it says which, once it sees target and data."""

    @abstractmethod
    def choose(self, target: Target, data: Data, trains: bool) -> Chosen:
        """The method for a problem; ``trains``: whether the network is still to be trained."""
