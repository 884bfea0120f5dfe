"""Gradients of single examples for parameters that no rule speaks for: recurrent layers, tied weights, modules of one's
own. Exact for anything that autograd can differentiate; slower than a rule."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.func import vjp, vmap

from temperance.data.sources import Inputs, map_tensors
from temperance.engine import outputs as forward
from temperance.inference.curvature.capture import Capture
from temperance.model.theta import Entry


class GeneralGradients:
    """Per-example gradients of some parameters by automatic differentiation, batched where ``vmap`` can."""

    def __init__(self, capture: Capture, entries: Sequence[Entry]) -> None:
        self.capture, self.entries = capture, list(entries)
        self.size = sum(e.size for e in entries)
        self.places = tuple((e.start, e.stop) for e in entries)
        self._batched = True

    def rows(self, x: Inputs, cotangents: Tensor) -> Tensor:
        """∂(cotangent · outputs of the row)/∂θ for K cotangents, K × B × C: K × B × p. Inside ``attached`` only."""
        if self._batched:
            try:
                with warnings.catch_warnings():
                    warnings.filterwarnings("error", message=".*performance drop.*")
                    return self._at_once(x, cotangents)
            except Exception:  # whatever stops vmap, the loop decides: a true error in the network is raised there
                made = self._one_by_one(x, cotangents)
                self._batched = False
                return made
        return self._one_by_one(x, cotangents)

    def _at_once(self, x: Inputs, cotangents: Tensor) -> Tensor:
        theta = self.capture.theta
        values = {e.name: theta[e.start : e.stop].view(e.shape) for e in self.entries}
        network, arrange = self.capture.network, self.capture.engine.likelihood.arrange

        def one(inputs: Inputs, rows: Tensor) -> Tensor:
            def outputs(chosen: dict[str, Tensor]) -> Tensor:
                made = forward.functional(network, chosen, map_tensors(lambda t: t.unsqueeze(0), inputs))
                return arrange(made).reshape(-1)

            pull = vjp(outputs, values)[1]
            (found,) = vmap(pull)(rows)
            return torch.cat([found[e.name].flatten(1) for e in self.entries], dim=1)

        return vmap(one, in_dims=(0, 1), out_dims=1)(x, cotangents)

    def _one_by_one(self, x: Inputs, cotangents: Tensor) -> Tensor:
        found = dict(self.capture.network.named_parameters())
        parameters = [found[e.name] for e in self.entries]
        made = cotangents.new_empty(cotangents.shape[0], cotangents.shape[1], self.size)
        for n in range(cotangents.shape[1]):
            row = map_tensors(lambda t, n=n: t[n : n + 1], x)  # type: ignore[misc]
            outputs = self.capture.outputs(row).reshape(-1)
            for k in range(len(cotangents)):
                parts = torch.autograd.grad(
                    outputs, parameters, cotangents[k, n], retain_graph=True, materialize_grads=True
                )
                made[k, n] = torch.cat([part.flatten() for part in parts])
        return made
