"""Prediction with many draws of a Gaussian posterior: what it needs in memory."""

from __future__ import annotations

from collections.abc import Callable

import torch


def predict(draws: int) -> Callable[[], None]:
    """Return a round: probabilities, mutual information and joint log-probability of 5,000 rows."""
    import temperance as tp
    from temperance.linalg import DiagonalCovariance
    from temperance.posteriors import Gaussian

    target = tp.Target(tp.nn.MLP(20, [50], 10), tp.Categorical(), tp.GaussianPrior(1.0))
    posterior = Gaussian(target.initial_theta(), DiagonalCovariance(torch.full((target.num_parameters,), 0.01)))
    fitted = tp.Fitted(target, posterior, tp.run.fitted.RunInfo())
    x, y = torch.randn(5_000, 20), torch.randint(0, 10, (5_000,))
    fitted.predict(x, draws=2).probs.sum()

    def round_of_prediction() -> None:
        predictive = fitted.predict(x, draws=draws)
        float(predictive.mutual_information().sum() + predictive.joint_log_prob(y))

    return round_of_prediction
