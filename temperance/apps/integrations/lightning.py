"""A posterior from any training by ``lightning.Trainer``: a callback that collects while it trains."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from temperance.apps.integrations.collecting import Collector, LearnedSource, known_length
from temperance.core.errors import ArgumentError
from temperance.model.likelihoods.base import Likelihood
from temperance.model.priors import Prior
from temperance.run.fitted import Fitted

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError as error:
    raise ImportError(
        'temperance.apps.integrations.lightning needs Lightning: pip install "temperance[lightning]".'
    ) from error


class LightningCollect(Callback):
    """Collects a posterior over the network inside a ``LightningModule`` while it is trained, however it is trained.

    * ``kind="swag"``: the iterates of any optimiser give the Gaussian of :class:`temperance.SWAG`. Keep the learning
      rate constant, and not too small, while it collects.
    * ``kind="draws"``: thinned copies of the weights. They are draws from p(θ | D)^{1/T} where ``configure_optimizers``
      returns a sampler of ``tp.optim`` (told N and, as weight decay, the prior) and ``training_step`` returns
      the batch's *mean* negative log-likelihood. N, prior and temperature are checked against this callback's.

    Its state is part of Lightning's checkpoints: ``trainer.fit(..., ckpt_path=...)`` goes on collecting where it was.

    Args:
        likelihood, prior, temperature, subset, freeze_batch_norm: those of the :class:`temperance.Target` to be.
        network: from the ``LightningModule`` to its network; unless told, its only child with trainable weights.
        learned: where the module keeps what the likelihood learns: ``lambda module: module.log_scale``.
        num_data: N, the number of training rows; unless told, that of the training ``DataLoader``.
        node_draws: for SWAG over batch norm, the number of draws that get batch statistics of their own.
        plan: ``kind``, ``start``, ``every``, ``unit``, ``rank``, ``last``: see
            :class:`~temperance.apps.integrations.plans.CollectionPlan`.

    >>> import temperance as tp
    >>> collect = LightningCollect(tp.Categorical(), tp.GaussianPrior(scale=1.0), kind="swag", start=0.75, rank=10)
    >>> # trainer = lightning.Trainer(max_epochs=100, callbacks=[collect]); trainer.fit(module, loader)
    >>> # fitted = collect.fitted(); fitted.predict(x).probs; fitted.save("run")
    """

    def __init__(
        self,
        likelihood: Likelihood,
        prior: Prior,
        *,
        network: Callable[[Any], nn.Module] | None = None,
        learned: LearnedSource | None = None,
        **settings: Any,
    ) -> None:
        self.collector = Collector(likelihood, prior, learned=learned, **settings)
        self._find = network
        self._module: LightningModule | None = None

    @property
    def state_key(self) -> str:
        """One for each plan, so that several of them can collect side by side."""
        return self._generate_state_key(plan=repr(self.collector.plan))

    def network_of(self, module: LightningModule) -> nn.Module:
        """The network whose weights are random."""
        if self._find is not None:
            found = self._find(module)
            if not isinstance(found, nn.Module):
                raise ArgumentError(f"`network` must give a torch.nn.Module; got {type(found).__name__}.")
            return found
        children = {n: c for n, c in module.named_children() if any(p.requires_grad for p in c.parameters())}
        if len(children) != 1:
            raise ArgumentError(
                "`network` must say which part of the LightningModule is the network (`lambda module: module.net`), "
                f"where it has not exactly one child with trainable weights; got {sorted(children)}."
            )
        return next(iter(children.values()))

    # ------------------------------------------------------------------ hooks

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """See ``lightning.Callback``."""
        self._module = pl_module
        if trainer.global_step == 0:
            self.collector.clear()
        batches, total = trainer.num_training_batches, trainer.estimated_stepping_batches
        given = trainer.train_dataloader
        loader = given if isinstance(given, torch.utils.data.DataLoader) else None
        self.collector.begin(
            self.network_of(pl_module),
            trainer.optimizers,
            rows=None if loader is None else known_length(loader.dataset),
            batch_size=None if loader is None else loader.batch_size,
            total=int(total) if math.isfinite(total) else None,
            steps_per_epoch=-(-int(batches) // trainer.accumulate_grad_batches) if math.isfinite(batches) else None,
            clipping=trainer.gradient_clip_val,
        )

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """After the last batch of an epoch too: before validation, and before any checkpoint is written."""
        self.collector.after_step(self.network_of(pl_module), trainer.global_step, pl_module)

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers and tensors."""
        numbers, tensors = self.collector.state()
        return {"numbers": numbers, "tensors": tensors}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """See ``lightning.Callback``."""
        self.collector.restore(state_dict["numbers"], state_dict["tensors"])

    # ------------------------------------------------------------------ the result

    def fitted(self, module: LightningModule | None = None, *, data: Any = None) -> Fitted:
        """The posterior collected so far, as ``temperance.run.fit`` would return it.

        Args:
            module: the module that was trained; unless told, the one of the last ``trainer.fit``.
            data: the training data, which only SWAG over batch norm needs.
        """
        trained = self._module if module is None else module
        if trained is None:
            raise ArgumentError("`module` must be given before any training by this callback; got None.")
        return self.collector.fitted(self.network_of(trained), data)
