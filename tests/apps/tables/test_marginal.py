"""Rows with unknown values: the imputations of a draw belong together, and are no draws themselves."""

from __future__ import annotations

import pytest
import torch

from temperance.apps.tables import fit_table
from temperance.apps.tables.columns import IMPUTATIONS
from temperance.apps.tables.marginal import predict_encoded
from temperance.posteriors import Stratum
from tests.apps.tables.test_run import houses


@pytest.mark.parametrize("method", ["SWAG(MAP(lr=2e-2))", "Laplace(MAP(lr=2e-2))", "Ensemble(MAP(lr=2e-2), 3)"])
def test_the_monte_carlo_error_of_rows_with_unknown_values(method: str) -> None:
    run = fit_table(houses().drop(columns=["price", "visits"]), "kind", id="id", method=method, epochs=4)
    encoded = run.encode(houses(6, seed=2).assign(town="Lugano"))
    found = predict_encoded(run.fitted, encoded)
    error = found.monte_carlo_error()
    assert error.shape == found.mean().shape
    filled = torch.from_numpy(encoded.imputed(encoded.open_rows).reshape(6 * IMPUTATIONS, -1))
    if method.startswith("Ensemble"):
        assert not error.any()
    elif method.startswith("Laplace"):  # quasi-random points, by other scrambles of them
        assert 0 < float(error.max()) < 0.02
        again = torch.stack([found._mean_of(found.source.again(k)) for k in range(8)])
        assert torch.allclose(error, again.std(0))
        assert torch.equal(again[0], found.mean())
        assert not torch.equal(again[1], found.mean())
    else:
        assert found.source.strata == (Stratum(30 * IMPUTATIONS, block=2 * IMPUTATIONS),)
        members = torch.cat([found.likelihood.mean(o, k) for _, o, k in run.fitted.predict(filled).source.blocks()], 1)
        pairs = members.view(15, 2, 6, IMPUTATIONS, -1).mean((1, 3))
        assert torch.allclose(error, pairs.std(0) / 15**0.5, rtol=1e-3, atol=1e-7)
