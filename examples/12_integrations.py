"""Where you already are: SWAG inside Lightning's loop, one file for serving, and draws for ArviZ."""

import logging
import tempfile
import warnings
from pathlib import Path

import lightning
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import temperance as tp
from temperance.apps.integrations.arviz import to_arviz
from temperance.apps.integrations.export import export_predictive
from temperance.apps.integrations.lightning import LightningCollect

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="lightning")
torch.manual_seed(0)
train, test = tp.data.load("digits")


# 1. A LightningModule like any other. The callback collects while it trains.
class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = tp.nn.MLP(64, [32], 10)

    def training_step(self, batch, index):
        x, y = batch
        return cross_entropy(self.net(x), y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)


collect = LightningCollect(tp.Categorical(), tp.GaussianPrior(scale=1.0), kind="swag", start=0.5, rank=10)
trainer = lightning.Trainer(
    max_epochs=20,
    accelerator="cpu",
    callbacks=[collect],
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Classifier(), DataLoader(TensorDataset(train.x, train.y), batch_size=64, shuffle=True))
fitted = collect.fitted()  # as if tp.fit had returned it
print("SWAG in Lightning:", {name: round(value, 3) for name, value in fitted.evaluate(test).items()})

# 2. All draws and their averages in one file, which needs nothing but torch to be read.
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "digits.pt2"
    export_predictive(fitted, train.x[:2], path, draws=10)
    served = torch.export.load(path).module()(test.x)
    print(f"a file of {path.stat().st_size // 1024} KiB gives {sorted(served)}")
assert torch.allclose(served["probs"], fitted.predict(test.x, draws=10).probs, atol=1e-5)

# 3. Chains for ArviZ: posterior, sample_stats, log_likelihood, posterior_predictive.
flowers, _ = tp.data.load("iris")
target = tp.Target(torch.nn.Linear(4, 3), tp.Categorical(), tp.GaussianPrior(scale=1.0))
chains = tp.fit(target, tp.Ensemble(tp.Collect(tp.Warmup(tp.NUTS(), 150), last=100), 2), flowers)
tree = to_arviz(chains, flowers)
print(f"a DataTree with {sorted(tree.children)}; weight: {dict(tree['posterior']['weight'].sizes)}")
