"""A posterior from fine-tuning by ``transformers.Trainer``: a callback that collects, and the model as a network."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from temperance.apps.integrations.collecting import Collector, LearnedSource, known_length
from temperance.core.errors import ArgumentError, CorruptRunError, DataError, MismatchError, TemperanceWarning
from temperance.data.data import Data
from temperance.engine.outputs import as_output
from temperance.model.likelihoods.base import Likelihood
from temperance.model.priors import Prior
from temperance.run.fitted import Fitted

try:
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments, default_data_collator
except ImportError as error:
    raise ImportError(
        'temperance.apps.integrations.transformers needs Transformers: pip install "temperance[transformers]".'
    ) from error

_FILE = "temperance.safetensors"
_KEY = "temperance"


class HuggingFaceNetwork(nn.Module):
    """A model of Transformers as a network: named tensors in (``input_ids``, ``attention_mask``, …), logits out.

    Args:
        model: any model whose output has ``logits``, one row for each row of the inputs.
        pick: from the model's output and the inputs to a matrix rows × outputs, where the logits are not that: of a
            language model, ``lambda out, inputs: out.logits[:, -1]`` are those of the next token.

    >>> class Model(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.head = nn.Linear(3, 2)
    ...     def forward(self, input_ids, return_dict=True):
    ...         return (self.head(input_ids.float()),)
    >>> HuggingFaceNetwork(Model())(input_ids=torch.ones(4, 3)).shape
    torch.Size([4, 2])
    """

    def __init__(self, model: nn.Module, pick: Callable[[Any, Mapping[str, Tensor]], Tensor] | None = None) -> None:
        super().__init__()
        if not isinstance(model, nn.Module):
            raise ArgumentError(f"`model` must be a torch.nn.Module of Transformers; got {type(model).__name__}.")
        self.model, self.pick = model, pick

    def forward(self, **inputs: Tensor) -> Tensor:
        """Logits, rows × outputs."""
        made = self.model(**inputs, return_dict=True)
        return as_output(made) if self.pick is None else self.pick(made, inputs)


def tokenised_data(rows: Any, *, label: str = "labels", collator: Callable[[list[Any]], Any] | None = None) -> Data:
    """Examples as ``transformers.Trainer`` takes them (mappings with a ``label``) as :class:`temperance.data.Data`.

    The rows are collated into one batch, so texts of different lengths need a ``collator`` that pads them.

    >>> rows = [{"input_ids": [1, 2], "attention_mask": [1, 1], "labels": 0}] * 3
    >>> tokenised_data(rows)
    Data('data', rows=3, x['input_ids'](3, 2), x['attention_mask'](3, 2), y(3,))
    """
    count = known_length(rows)
    if not count:
        raise DataError("`rows` must be a sequence of at least one example; got none, or one without a length.")
    made = dict((default_data_collator if collator is None else collator)([rows[k] for k in range(count)]))
    if label not in made:
        raise DataError(f"`label` must be one of the columns {sorted(made)}; got {label!r}.")
    y = made.pop(label)
    return Data({name: value for name, value in made.items() if isinstance(value, Tensor)}, y)


class TemperanceCallback(TrainerCallback):
    """Collects a posterior over a model's trainable weights (those with ``requires_grad``: all, adapters of LoRA, or
    the head) while ``transformers.Trainer`` trains it.

    * ``kind="swag"``: the iterates of any optimiser; keep the learning rate constant while it collects
      (``lr_scheduler_type="constant"``).
    * ``kind="draws"``: draws from the posterior, where the trainer is given a sampler of ``temperance.run.optim``,
      ``Trainer(optimizers=(SGHMC(model.parameters(), lr, num_data=N, ...), None))``, with a constant schedule and
      ``max_grad_norm=0``. The loss must be the batch's mean negative log-likelihood, as that of classifiers is.

    What is collected is written next to each checkpoint of the trainer (``temperance.safetensors``), and
    ``trainer.train(resume_from_checkpoint=True)`` goes on from there.

    Args:
        likelihood, prior, temperature, subset, freeze_batch_norm: those of the :class:`temperance.Target` to be.
        network: from the model to a network; unless told, :class:`HuggingFaceNetwork`, so that names of parameters
            begin with ``model.``.
        learned: where the model keeps what the likelihood learns.
        num_data: N; unless told, the length of the training set.
        resume: the folder of a checkpoint to go on from, where it is not in the trainer's ``output_dir``.
        plan: ``kind``, ``start``, ``every``, ``unit``, ``rank``, ``last``, ``node_draws``: see
            :class:`~temperance.apps.integrations.lightning.LightningCollect`.

    >>> import temperance as tp
    >>> collect = TemperanceCallback(tp.Categorical(), tp.GaussianPrior(scale=1.0), kind="swag", start=0.5, rank=10)
    >>> # Trainer(model, args, train_dataset=rows, callbacks=[collect]).train()
    >>> # collect.fitted().predict({"input_ids": ids, "attention_mask": mask}).probs
    """

    def __init__(
        self,
        likelihood: Likelihood,
        prior: Prior,
        *,
        network: Callable[[Any], nn.Module] = HuggingFaceNetwork,
        learned: LearnedSource | None = None,
        resume: str | Path | None = None,
        **settings: Any,
    ) -> None:
        self.collector = Collector(likelihood, prior, learned=learned, **settings)
        self._find, self._resume = network, None if resume is None else Path(resume)
        self._model: nn.Module | None = None

    # ------------------------------------------------------------------ events

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """See ``transformers.TrainerCallback``."""
        self._model = kwargs["model"]
        loader = kwargs["train_dataloader"]
        batches = known_length(loader)
        if state.global_step:
            self._go_on(Path(str(args.output_dir)) / f"checkpoint-{state.global_step}", state.global_step)
        else:
            self.collector.clear()
        self.collector.begin(
            self._find(self._model),
            _plain(kwargs.get("optimizer")),
            rows=known_length(getattr(loader, "dataset", None)),
            batch_size=state.train_batch_size,
            total=state.max_steps if state.max_steps > 0 else None,
            steps_per_epoch=None if batches is None else -(-batches // args.gradient_accumulation_steps),
            clipping=args.max_grad_norm,
        )

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """After each optimiser step, before any checkpoint is written."""
        self.collector.after_step(self._find(kwargs["model"]), state.global_step, kwargs["model"])

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Write what is collected into the checkpoint's folder."""
        folder = Path(str(args.output_dir)) / f"checkpoint-{state.global_step}"
        if state.is_world_process_zero and folder.is_dir():
            numbers, tensors = self.collector.state()
            tensors = {name: value.contiguous() for name, value in tensors.items()} or {"empty": torch.zeros(0)}
            save_file(tensors, folder / _FILE, metadata={_KEY: json.dumps(numbers)})

    def _go_on(self, folder: Path, steps: int) -> None:
        path = (folder if self._resume is None else self._resume) / _FILE
        if not path.is_file():
            if self.collector.done == steps:  # the same callback, still in memory
                return
            self.collector.clear()
            self.collector.done = steps
            warnings.warn(
                f"training goes on from step {steps}, but {str(path)!r} is not there: collection begins now. Where the "
                "checkpoint lies elsewhere, name its folder (`resume`).",
                TemperanceWarning,
                stacklevel=3,
            )
            return
        with safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get(_KEY)
            if text is None:
                raise CorruptRunError(f"{str(path)!r} was not written by this callback.")
            names = file.keys()
            self.collector.restore(json.loads(text), {name: file.get_tensor(name) for name in names})
        if self.collector.done != steps:
            raise MismatchError(f"{str(path)!r} is of step {self.collector.done}; training goes on from {steps}.")

    # ------------------------------------------------------------------ the result

    def fitted(self, model: nn.Module | None = None, *, data: Any = None) -> Fitted:
        """The posterior collected so far, as ``tp.fit`` would return it; of the ``model`` last trained unless
        told. ``data`` are needed only for SWAG over batch norm."""
        trained = self._model if model is None else model
        if trained is None:
            raise ArgumentError("`model` must be given before any training with this callback; got None.")
        return self.collector.fitted(self._find(trained), data)


def _plain(optimizer: Any) -> Sequence[Any]:
    """The optimisers inside what Accelerate wraps."""
    if optimizer is None:
        return ()
    inner = getattr(optimizer, "optimizer", optimizer)
    return (inner,)
