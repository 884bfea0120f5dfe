"""Where people already are: the posterior inside other libraries' training loops, tools and formats.

* ``temperance.apps.integrations.lightning``: a callback that collects a posterior while ``lightning.Trainer`` trains;
* ``temperance.apps.integrations.transformers``: the same for ``transformers.Trainer``;
* ``temperance.apps.integrations.arviz``: draws, predictions and log-likelihoods as an ArviZ ``DataTree``;
* ``temperance.apps.integrations.tensorboard``: the numbers of a run as TensorBoard events;
* ``temperance.apps.integrations.export``: the posterior predictive as one ``torch.export`` artefact;
* ``temperance.apps.integrations.botorch``: Bayesian optimisation with any posterior.

Names are imported when they are first used (``tp.integrations.export_predictive``): each module needs the package it
is named after.
"""

from temperance.core.demand import on_demand

_PLACES = {
    **dict.fromkeys(("export_predictive", "predictive_module"), "export"),
    "to_arviz": "arviz",
    **dict.fromkeys(("TensorBoardLogger", "write_tensorboard"), "tensorboard"),
    "LightningCollect": "lightning",
    **dict.fromkeys(("HuggingFaceNetwork", "TemperanceCallback", "tokenised_data"), "transformers"),
    **dict.fromkeys(("GaussianPosteriorModel", "PosteriorModel", "optimise"), "botorch"),
    **{name: f"{name}." for name in ("arviz", "botorch", "export", "lightning", "tensorboard", "transformers")},
}
__getattr__ = on_demand(__name__, _PLACES)
