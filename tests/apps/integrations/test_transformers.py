"""``TemperanceCallback`` and ``HuggingFaceNetwork``: tiny models made offline."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import temperance as tp
from temperance.core.errors import ArgumentError, DataError, MismatchError, TemperanceWarning
from temperance.run.optim import SGHMC, weight_decay_of

transformers = pytest.importorskip("transformers")
from temperance.apps.integrations.transformers import (  # noqa: E402
    HuggingFaceNetwork,
    TemperanceCallback,
    tokenised_data,
)

PRIOR = tp.GaussianPrior(scale=1.0)
ROWS = 16


def bert() -> nn.Module:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=20,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=8,
        num_labels=3,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return transformers.BertForSequenceClassification(config)


def rows() -> list[dict[str, Tensor]]:
    rng = torch.Generator().manual_seed(1)
    ids = torch.randint(1, 20, (ROWS, 5), generator=rng)
    mask = torch.ones_like(ids)
    mask[::2, 3:] = 0
    return [{"input_ids": i, "attention_mask": m, "labels": i[0] % 3} for i, m in zip(ids, mask, strict=True)]


class Watch(transformers.TrainerCallback):
    """Remembers the weights after every step."""

    def __init__(self) -> None:
        self.visited: list[Tensor] = []

    def on_step_end(self, args, state, control, **kwargs):
        trained = [p for p in kwargs["model"].parameters() if p.requires_grad]
        self.visited.append(nn.utils.parameters_to_vector(trained).detach().clone())


def train(model, callback, folder: Path, optimizer=None, resume=None, watch=None, **more) -> None:
    settings = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 4,
        "num_train_epochs": 3,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0.0,
        "report_to": [],
        "save_strategy": "no",
        "disable_tqdm": True,
        "use_cpu": True,
        "logging_strategy": "no",
        "dataloader_pin_memory": False,
        **more,
    }
    optimizer = optimizer or torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05)
    transformers.Trainer(
        model,
        transformers.TrainingArguments(**settings),
        train_dataset=rows(),
        callbacks=[c for c in (callback, watch) if c is not None],
        optimizers=(optimizer, None),
    ).train(resume_from_checkpoint=resume)


def sampler(model: nn.Module) -> SGHMC:
    return SGHMC(model.parameters(), lr=1e-3, num_data=ROWS, weight_decay=weight_decay_of(1.0, ROWS))


def test_swag_has_the_moments_of_the_iterates_and_predicts(tmp_path: Path) -> None:
    callback, watch, model = TemperanceCallback(tp.Categorical(), PRIOR, start=1, every=1, rank=2), Watch(), bert()
    train(model, callback, tmp_path, watch=watch)
    fitted = callback.fitted()
    iterates = torch.stack(watch.visited)[[7, 11]]  # 4 steps an epoch; the ends of the second and the third
    torch.testing.assert_close(fitted.posterior.mean, iterates.mean(0), rtol=1e-5, atol=1e-7)
    variances = fitted.posterior.operator.diagonal()
    running = torch.stack([torch.zeros_like(iterates[0]), (iterates[1] - iterates[0]) / 2])  # from the mean so far
    expected = 0.5 * iterates.var(0, correction=0) + 0.5 * running.square().sum(0)
    torch.testing.assert_close(variances, expected, rtol=1e-2, atol=1e-9)
    assert fitted.info.data == {"rows": ROWS, "batch_size": 4, "collected": 2}
    known = tokenised_data(rows())
    assert set(fitted.evaluate(known, draws=3)) >= {"log_loss", "accuracy"}
    fitted.save(tmp_path / "run")
    again = tp.load(tmp_path / "run", HuggingFaceNetwork(bert()))
    assert torch.equal(again.predict(known.x, draws=3).probs, fitted.predict(known.x, draws=3).probs)


def test_only_what_is_trained_is_random(tmp_path: Path) -> None:
    model = bert()
    model.bert.requires_grad_(False)  # as LoRA and last-layer fine-tuning do
    before = model.bert.embeddings.word_embeddings.weight.clone()
    callback = TemperanceCallback(tp.Categorical(), PRIOR, kind="draws", start=0, every=1, unit="steps", last=5)
    with pytest.warns(TemperanceWarning, match="no sampler"):
        train(model, callback, tmp_path)
    fitted = callback.fitted()
    assert [e.name for e in fitted.target.layout.entries] == ["model.classifier.weight", "model.classifier.bias"]
    assert fitted.posterior.theta.shape == (5, 16 * 3 + 3)
    assert torch.equal(fitted.target.network.model.bert.embeddings.word_embeddings.weight, before)
    x = tokenised_data(rows()).x
    with torch.no_grad():  # the last draw is the model as it is now
        now = model.eval()(**x).logits.softmax(-1)
    last = tp.posteriors.Draws(fitted.posterior.theta[-1:])
    torch.testing.assert_close(tp.Fitted(fitted.target, last, fitted.info).predict(x).probs, now)


@pytest.mark.parametrize("kind", ["swag", "draws"])
def test_a_resumed_run_collects_what_an_uninterrupted_one_does(kind: str, tmp_path: Path) -> None:
    def callback():
        return TemperanceCallback(tp.Categorical(), PRIOR, kind=kind, start=2, every=3, unit="steps", rank=2)

    whole, resumed = callback(), callback()
    first = bert()
    train(first, whole, tmp_path, sampler(first), save_strategy="steps", save_steps=6)
    second = bert()
    folder = tmp_path / "checkpoint-6"
    assert (folder / "temperance.safetensors").is_file()
    train(second, resumed, tmp_path, sampler(second), resume=str(folder), save_strategy="steps", save_steps=6)
    one, other = whole.collector.state(), resumed.collector.state()
    assert one[0] == other[0]
    assert one[0]["collected"] == 3  # after 5, 8 and 11 steps
    for name in one[1]:
        assert torch.equal(one[1][name], other[1][name]), name


def test_a_checkpoint_elsewhere_must_be_named(tmp_path: Path) -> None:
    model = bert()
    settings = {"start": 0, "every": 2, "unit": "steps", "rank": 0}
    train(model, TemperanceCallback(tp.Categorical(), PRIOR, **settings), tmp_path / "a", num_train_epochs=1,
          save_strategy="epoch")  # fmt: skip
    saved = str(tmp_path / "a" / "checkpoint-4")
    lost = TemperanceCallback(tp.Categorical(), PRIOR, **settings)
    with pytest.warns(TemperanceWarning, match="collection begins now"):
        train(bert(), lost, tmp_path / "b", resume=saved, num_train_epochs=2)
    assert lost.collector.collected == 2
    found = TemperanceCallback(tp.Categorical(), PRIOR, resume=saved, **settings)
    train(bert(), found, tmp_path / "b", resume=saved, num_train_epochs=2)
    assert found.collector.collected == 4
    other = TemperanceCallback(tp.Categorical(), PRIOR, resume=saved, **{**settings, "every": 1})
    with pytest.raises(MismatchError, match="every"):
        train(bert(), other, tmp_path / "b", resume=saved, num_train_epochs=2)


def test_the_sampler_must_know_n_and_gradients_must_not_be_clipped(tmp_path: Path) -> None:
    model = bert()
    callback = TemperanceCallback(tp.Categorical(), PRIOR, kind="draws", unit="steps", start=0)
    with pytest.raises(ArgumentError, match="number of training rows, 16"):
        train(model, callback, tmp_path, SGHMC(model.parameters(), lr=1e-3, num_data=4))
    with pytest.warns(TemperanceWarning, match="clipped at 1.0"):
        train(model, callback, tmp_path, sampler(model), max_grad_norm=1.0, max_steps=1)


def test_a_language_model_as_a_network() -> None:
    config = transformers.GPT2Config(vocab_size=11, n_positions=8, n_embd=16, n_layer=2, n_head=2)
    network = HuggingFaceNetwork(transformers.GPT2LMHeadModel(config), lambda out, inputs: out.logits[:, -1])
    ids = torch.randint(0, 11, (6, 4))
    target = tp.Target(network, tp.Categorical(), PRIOR, subset="model.transformer.ln_f")
    data = ({"input_ids": ids[:, :3]}, ids[:, 3])
    fitted = tp.fit(target, tp.MAP(lr=1e-2), data, epochs=2)
    assert fitted.predict(data[0]).probs.shape == (6, 11)


def test_errors() -> None:
    with pytest.raises(DataError, match="`label`"):
        tokenised_data(rows(), label="target")
    with pytest.raises(DataError, match="`rows`"):
        tokenised_data([])
    with pytest.raises(ArgumentError, match="`model`"):
        HuggingFaceNetwork("bert-base-uncased")
    with pytest.raises(ArgumentError, match="`model`"):
        TemperanceCallback(tp.Categorical(), PRIOR).fitted()


def test_without_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "temperance.apps.integrations.transformers")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match=r"temperance\[transformers\]"):
        importlib.import_module("temperance.apps.integrations.transformers")
