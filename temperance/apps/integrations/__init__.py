"""Where people already are: the posterior inside other libraries' training loops, tools and formats.

* ``temperance.apps.integrations.lightning``: a callback that collects a posterior while ``lightning.Trainer`` trains;
* ``temperance.apps.integrations.transformers``: the same for ``transformers.Trainer``;
* ``temperance.apps.integrations.arviz``: draws, predictions and log-likelihoods as an ArviZ ``DataTree``;
* ``temperance.apps.integrations.tensorboard``: the numbers of a run as TensorBoard events;
* ``temperance.apps.integrations.export``: the posterior predictive as one ``torch.export`` artefact;
* ``temperance.apps.integrations.botorch``: Bayesian optimisation with any posterior.

Nothing is imported here: each module needs the package it is named after.
"""
