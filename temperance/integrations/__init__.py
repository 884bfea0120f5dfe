"""Where people already are: the posterior inside other libraries' training loops, tools and formats.

* ``temperance.integrations.lightning``: a callback that collects a posterior while ``lightning.Trainer`` trains;
* ``temperance.integrations.transformers``: the same for ``transformers.Trainer``;
* ``temperance.integrations.arviz``: draws, predictions and log-likelihoods as an ArviZ ``DataTree``;
* ``temperance.integrations.tensorboard``: the numbers of a run as TensorBoard events;
* ``temperance.integrations.export``: the posterior predictive as one ``torch.export`` artefact;
* ``temperance.integrations.botorch``: Bayesian optimisation with any posterior.

Nothing is imported here: each module needs the package it is named after.
"""
