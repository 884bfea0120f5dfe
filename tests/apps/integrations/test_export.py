"""``export_predictive``: in a process without Temperance the file says what ``fitted.predict`` says."""

from __future__ import annotations

import logging
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import temperance as tp
from temperance.apps.integrations.export import export_predictive, predictive_module
from temperance.core.errors import ArgumentError, NetworkError, TemperanceWarning
from temperance.linalg import DiagonalCovariance
from temperance.posteriors import Draws, DropoutPosterior, Gaussian, Mixture, Point
from temperance.run.fitted import RunInfo

logging.getLogger("torch.__trace").disabled = True  # pytest would have each step of an export described
PRIOR = tp.GaussianPrior(scale=1.0)
RNG = torch.Generator().manual_seed(0)


def rand(*shape: int) -> Tensor:
    return 0.5 * torch.randn(*shape, generator=RNG)


def mlp(outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, outputs))


def draws(target: tp.Target, count: int = 4) -> Draws:
    return Draws(rand(count, target.layout.size))


def gaussian(target: tp.Target) -> Gaussian:
    size = target.layout.size
    return Gaussian(rand(size), DiagonalCovariance(0.05 + rand(size).square()))


def fitted(network: nn.Module, likelihood: tp.Likelihood, posterior) -> tp.Fitted:
    target = tp.Target(network, likelihood, PRIOR)
    made = posterior(target)
    return tp.Fitted(made.retarget(target), made, RunInfo())


def with_batch_norm() -> tp.Fitted:
    """Members with statistics of their own."""
    network = nn.Sequential(nn.Conv1d(1, 2, 2), nn.BatchNorm1d(2), nn.ReLU(), nn.Flatten(), nn.Linear(4, 3))

    def posterior(target: tp.Target) -> Mixture:
        members = []
        for _ in range(3):
            statistics = {name: value.clone() for name, value in target.moving.items()}
            statistics["1.running_mean"] = rand(2)
            statistics["1.running_var"] = 0.2 + rand(2).square()
            members.append(Point(rand(target.layout.size), statistics))
        return Mixture(tuple(members), (0.5, 0.3, 0.2))

    return fitted(network, tp.Categorical(), posterior)


class Two(nn.Module):
    """A network of named inputs, as those of Transformers are."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(7, 4), nn.Linear(4, 2)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        weights = mask / mask.sum(1, keepdim=True)
        return self.head((self.embed(ids) * weights.unsqueeze(-1)).sum(1))


class Loud(nn.Module):
    """Cannot be batched by vmap: it asks for a number."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        if torch._C._functorch.is_batchedtensor(self.linear.weight):
            raise RuntimeError("not batched")
        return self.linear(x)


def dropout() -> tp.Fitted:
    network = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Dropout(0.4), nn.Linear(6, 2))
    return fitted(network, tp.Categorical(), lambda t: DropoutPosterior(rand(t.layout.size), ("2",)))


def laplace(network: nn.Module, likelihood: tp.Likelihood, x: Tensor, y: Tensor, method=None, **settings) -> tp.Fitted:
    """Linearised, at a temperature of its own."""
    target = tp.Target(network, likelihood, PRIOR, temperature=0.3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TemperanceWarning)
        return tp.fit(target, method or tp.Laplace(tp.MAP(lr=1e-2), **settings), (x, y), epochs=5)


def uneven(one: tp.Fitted, two: tp.Fitted) -> tp.Fitted:
    mixed = Mixture((one.posterior, two.posterior), (0.9, 0.1))
    return tp.Fitted(one.target, mixed, RunInfo())


def laplace_values() -> tp.Fitted:
    """Two members whose learned noise is uncertain, of weights that differ."""
    y = rand(6, 2) + X[:, :2]
    return uneven(*(laplace(mlp(2), tp.Normal(), X, y + k, curvature=tp.Dense()) for k in range(2)))


def laplace_classes() -> tp.Fitted:
    def one(k: int) -> tp.Fitted:
        network = nn.Sequential(nn.Conv1d(1, 2, 2), nn.Tanh(), nn.Flatten(), nn.LayerNorm(4), nn.Linear(4, 3))
        return laplace(network, tp.Categorical(), X.unsqueeze(1), (torch.arange(6) + k) % 3)

    return uneven(one(0), one(1))


def laplace_last() -> tp.Fitted:
    """As many rows as a tracer is shown, as many features: it may not take one for the other."""
    x = rand(9, 7)
    method = tp.On(tp.last_layer, tp.Laplace(tp.MAP(lr=1e-2), curvature=tp.Diagonal(), tune=None))
    network = nn.Sequential(nn.Linear(7, 8), nn.Tanh(), nn.Linear(8, 2))
    return laplace(network, tp.HeteroscedasticNormal(), x, rand(9, 1), method)


class Attending(nn.Module):
    """Numbers as words, the last of which may be padding."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(4, 2, 5, batch_first=True)
        self.words, self.head = nn.Linear(1, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.pad(x[:, 2:] > 0, (2, 0))
        return self.head(self.layer(self.words(x.unsqueeze(-1)), src_key_padding_mask=hidden)[:, 0])


X = rand(6, 3)
RAW = tp.data.Data(10 + 3 * X, 100 + 20 * rand(6, 1))
UNITS = RAW.standardise().info
UNITS2 = tp.data.Data(RAW.x, 100 + 20 * rand(6, 2)).standardise().info
NAMED = {"ids": torch.randint(0, 7, (6, 5), generator=RNG), "mask": torch.ones(6, 5)}
CASES = {
    "categorical-batch-norm": (with_batch_norm, X.unsqueeze(1), {}),
    "categorical-draws": (lambda: fitted(mlp(4), tp.Categorical(), draws), X, {}),
    "categorical-named": (lambda: fitted(Two(), tp.Categorical(), gaussian), NAMED, {"draws": 5, "seed": 3}),
    "categorical-dropout": (dropout, X, {"draws": 6}),
    "bernoulli-point": (lambda: fitted(mlp(2), tp.Bernoulli(), lambda t: Point(rand(t.layout.size))), X, {}),
    "normal-learned": (lambda: fitted(mlp(1), tp.Normal(), gaussian), RAW.x, {"draws": 7, "normalise": UNITS}),
    "normal-loop": (lambda: fitted(Loud(), tp.Normal(scale=0.3), draws), X, {}),
    "heteroscedastic": (lambda: fitted(mlp(4), tp.HeteroscedasticNormal(), draws), X, {"levels": (0.1,)}),
    "student": (lambda: fitted(mlp(1), tp.StudentT(df=5.0), draws), X, {"levels": ()}),
    "contaminated": (lambda: fitted(mlp(1), tp.ContaminatedNormal(scale=0.3), draws), X, {}),
    "noisy-labels": (lambda: fitted(mlp(3), tp.NoisyLabels(), draws), X, {}),
    "curated": (lambda: fitted(mlp(3), tp.CuratedLabels(2, undecided=True), draws), X, {}),
    "zero-inflated": (lambda: fitted(mlp(2), tp.ZeroInflated(tp.NegativeBinomial()), draws), X, {"levels": ()}),
    "poisson-mixture": (
        lambda: fitted(mlp(1), tp.Poisson(), lambda t: Mixture((gaussian(t), draws(t)), (0.25, 0.75))),
        X,
        {"draws": 6},
    ),
    "laplace-values": (laplace_values, RAW.x, {"normalise": UNITS2}),
    "laplace-classes": (laplace_classes, X.unsqueeze(1), {}),
    "laplace-last": (laplace_last, rand(6, 7), {"draws": 20}),
    "laplace-counts": (lambda: laplace(mlp(1), tp.Poisson(), X, torch.arange(6.0).unsqueeze(1)), X, {}),
    "laplace-attention": (lambda: laplace(Attending(), tp.Categorical(), X, torch.arange(6) % 2), X, {}),
    "laplace-labels": (lambda: laplace(mlp(2), tp.Bernoulli(), X, (rand(6, 2) > 0).float()), X, {}),
}
QUICK = ("categorical-batch-norm", "normal-learned", "laplace-values", "laplace-classes")

READER = """
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "temperance":
            raise ImportError("temperance is not here")

sys.meta_path.insert(0, Block())
import torch
from pathlib import Path

torch.set_num_threads(1)
for path in sorted(Path(sys.argv[1]).glob("*.pt2")):
    x = torch.load(path.with_suffix(".x"), weights_only=True)
    torch.save(torch.export.load(path).module()(x), path.with_suffix(".out"))
try:
    import temperance
except ImportError:
    print("read without temperance")
"""


def read_elsewhere(cases, folder: Path) -> dict[str, tuple[tp.Fitted, dict[str, Tensor]]]:
    """Each case: exported with one row or two, read in another process and shown six."""
    made = {}
    for name, (make, x, settings) in cases.items():
        made[name] = make()
        example = {k: v[:2] for k, v in x.items()} if isinstance(x, dict) else x[:1]
        export_predictive(made[name], example, folder / f"{name}.pt2", **settings)
        torch.save(x, folder / f"{name}.x")
    done = subprocess.run(
        [sys.executable, "-c", READER, str(folder)],
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=300,
        check=False,
    )
    assert done.stdout.strip() == "read without temperance", done.stderr
    return {name: (made[name], torch.load(folder / f"{name}.out", weights_only=True)) for name in cases}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("at_once", [True, False])
def test_the_module_says_what_predict_says(name: str, at_once: bool) -> None:
    make, x, settings = CASES[name]
    run = make()
    module = predictive_module(run, example_x=x, **settings)
    if name == "normal-loop" or name.startswith("laplace"):
        at_once = False
    module.at_once = at_once
    with torch.no_grad():
        check(run, module(x), x, settings)


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory):
    return read_elsewhere({name: CASES[name] for name in QUICK}, tmp_path_factory.mktemp("export"))


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory):
    return read_elsewhere(CASES, tmp_path_factory.mktemp("export"))


@pytest.mark.parametrize("name", QUICK)
def test_another_process_says_what_predict_says(name: str, quick) -> None:
    check(*quick[name], *CASES[name][1:])


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_another_process_says_what_predict_says_of_all(name: str, every) -> None:
    check(*every[name], *CASES[name][1:])


def check(run: tp.Fitted, found: dict[str, Tensor], x, settings) -> None:
    units = settings.get("normalise", tp.data.DataInfo())
    given = x if units.x_mean is None else (x - units.x_mean) / units.x_scale
    said = run.predict(given, draws=settings.get("draws"), seed=settings.get("seed", 0))
    if isinstance(run.target.likelihood.outcome, tp.outcomes.Categories):
        close = {"rtol": 1e-4, "atol": 2e-6}
        torch.testing.assert_close(found["probs"], said.probs, **close)
        torch.testing.assert_close(found["std"], said.std(), **close)
        torch.testing.assert_close(found["entropy"], said.entropy(), **close)
        torch.testing.assert_close(found["aleatoric"], said.aleatoric(), **close)
        torch.testing.assert_close(found["mutual_information"], said.mutual_information(), **close)
        return
    close = {"rtol": 1e-4, "atol": 2e-6 if units.y_scale is None else 1e-4}
    torch.testing.assert_close(found["mean"], units.in_units(said.mean()), **close)
    torch.testing.assert_close(found["std"], units.spread_in_units(said.std()), **close)
    torch.testing.assert_close(found["epistemic_std"], units.spread_in_units(said.epistemic_std()), **close)
    noise = said.aleatoric_variance().sqrt()
    torch.testing.assert_close(found["aleatoric_std"], units.spread_in_units(noise), **close)
    levels = settings.get("levels", (0.05, 0.5, 0.95))
    assert ("quantiles" in found) == bool(levels)
    for k, level in enumerate(levels):
        exact = {"rtol": 0, "atol": 0} if isinstance(run.target.likelihood, tp.Poisson) else close
        torch.testing.assert_close(found["quantiles"][k], units.in_units(said.quantile(level)), **exact)


def test_the_draws_are_kept_once_and_the_original_not_at_all() -> None:
    run = fitted(mlp(4), tp.Categorical(), draws)
    program = export_predictive(run, X)
    numbers = sum(value.numel() for value in program.state_dict.values())
    assert numbers == 4 * run.target.layout.size + 4  # and the weights of the four
    called = [node.target for node in program.graph.nodes if node.op == "call_function"]
    assert all(isinstance(target, torch._ops.OpOverload) for target in called)  # nothing but operations of torch


def test_a_fixed_batch() -> None:
    run = fitted(mlp(4), tp.Categorical(), draws)
    module = export_predictive(run, X, dynamic_batch=False).module()
    torch.testing.assert_close(module(X)["probs"], run.predict(X).probs)
    with pytest.raises(AssertionError):
        module(X[:3])


def test_laplace_is_exported_by_draws_where_asked() -> None:
    run = laplace(mlp(1), tp.Normal(scale=0.3), X, rand(6, 1))
    found = export_predictive(run, X, by="network", draws=5, levels=()).module()(X)
    torch.testing.assert_close(found["std"], run.predict(X, by="network", draws=5).std(), rtol=1e-4, atol=1e-6)


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase] = nn.GRU) -> None:
        super().__init__()
        self.memory, self.head = kind(1, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.memory(x.unsqueeze(-1))[0][:, -1])


def test_a_recurrent_layer_stays_one_operation_for_each_draw() -> None:
    run = fitted(Recurrent(nn.LSTM), tp.Categorical(), draws)
    program = export_predictive(run, X)
    called = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert called.count("aten.lstm.input") == 4
    torch.testing.assert_close(program.module()(X)["probs"], run.predict(X).probs)


def test_what_cannot_be_linearised_in_a_file_is_refused() -> None:
    y = torch.arange(6) % 2
    run = laplace(Recurrent(), tp.Categorical(), X, y)
    with pytest.raises(ArgumentError, match=r'no rule for its gradients.*by="network"'):
        export_predictive(run, X)
    assert export_predictive(run, X, by="network", draws=2).module()(X)["probs"].shape == (6, 2)
    process = laplace(mlp(2), tp.Categorical(), X, y, tp.FunctionalLaplace(tp.MAP(lr=1e-2)))
    with pytest.raises(ArgumentError, match="process over functions cannot be exported"):
        export_predictive(process, X)
    many = laplace(mlp(70), tp.Categorical(), X, torch.arange(6), curvature=tp.Diagonal())
    with pytest.raises(ArgumentError, match="70 outputs are draws of functions"):
        export_predictive(many, X)
    with pytest.raises(ArgumentError, match="`by` must be"):
        export_predictive(many, X, by="probit")
    with pytest.raises(ArgumentError, match="`example_x` must be given"):
        predictive_module(laplace(mlp(2), tp.Categorical(), X, y))
    with pytest.raises(ArgumentError, match="need a Laplace posterior"):
        export_predictive(fitted(mlp(2), tp.Categorical(), draws), X, by="linearised")


def test_a_linearised_network_is_kept_once() -> None:
    run = laplace(mlp(2), tp.Categorical(), X, torch.arange(6) % 2, curvature=tp.Diagonal())
    program = export_predictive(run, X)
    held = {id(v.untyped_storage()): v.numel() for v in [*program.state_dict.values(), *program.constants.values()]}
    assert sum(held.values()) < 5 * run.target.layout.size + 128 * 2 * 2  # weights, variances, points


class Casting(nn.Module):
    """Casts to the dtype that is there already, which an export checks, and cannot check while it is batched."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).relu().to(torch.float32))


def test_a_network_that_cannot_be_batched_is_written_draw_by_draw_and_leaves_nothing_open() -> None:
    run = fitted(Casting(), tp.Categorical(), draws)
    program = export_predictive(run, X[:1])
    assert torch._C._functorch.peek_interpreter_stack() is None
    assert nn.Linear(2, 2).weight.isfinite().all()  # in a process with an open vmap this raises
    assert torch.allclose(program.module()(X)["probs"], run.predict(X).probs, atol=1e-6)


class Tied(nn.Module):
    """One weight in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 4)
        self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.b(self.a(x).tanh()).tanh())


@pytest.mark.parametrize("at_once", [True, False])
def test_tied_weights_are_those_of_each_draw_in_both_places(at_once: bool) -> None:
    run = fitted(Tied(), tp.Categorical(), draws)
    wanted = run.predict(X).probs
    module = predictive_module(run)
    module.at_once = at_once
    assert torch.allclose(module(X)["probs"], wanted, atol=1e-6)
    program = export_predictive(run, X[:2])
    assert torch.allclose(program.module()(X)["probs"], wanted, atol=1e-6)


def test_dropout_is_batched_in_an_export() -> None:
    """Its masks cast nothing that is of the right dtype."""
    module = predictive_module(dropout(), draws=4)
    module.at_once = True
    shapes = ({0: torch.export.Dim("rows", min=1)},)
    with torch.no_grad():
        program = torch.export.export(module, (X[:2],), dynamic_shapes=shapes).run_decompositions({})
    assert torch.allclose(program.module()(X)["probs"], module(X)["probs"], atol=1e-6)


def test_errors(tmp_path: Path) -> None:
    run = fitted(mlp(1), tp.Normal(), draws)
    for settings, argument in (
        ({"path": tmp_path / "model.onnx"}, "path"),
        ({"levels": (1.5,)}, "levels"),
        ({"draws": 0}, "draws"),
        ({"normalise": tp.data.DataInfo()}, "normalise"),
        ({"normalise": {"mean": 0}}, "normalise"),
        ({"normalise": tp.data.DataInfo(x_mean=torch.zeros(3))}, "normalise"),
    ):
        with pytest.raises(ArgumentError, match=f"`{argument}`"):
            export_predictive(run, X, **settings)
    with pytest.raises(ArgumentError, match="`example_x`"):
        export_predictive(run, X[:0])
    with pytest.raises(NetworkError, match="cannot take inputs"):
        export_predictive(run, X[:, :2])
    with pytest.raises(ArgumentError, match="`levels` must be empty for Categorical"):
        export_predictive(fitted(mlp(4), tp.Categorical(), draws), X, levels=(0.5,))

    class Asks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x) * (2.0 if float(x.sum()) > 0 else 1.0)

    with pytest.raises(NetworkError, match=r"torch\.export cannot write this network down"):
        export_predictive(fitted(Asks(), tp.Normal(scale=1.0), draws), X)


class Counts(nn.Module):
    """Puts its rows together again by their number."""

    def __init__(self, by_length: bool) -> None:
        super().__init__()
        self.linear, self.by_length = nn.Linear(3, 1), by_length

    def forward(self, x: Tensor) -> Tensor:
        rows = len(x) if self.by_length else x.shape[0]
        return self.linear(x).reshape(rows, 1)


def test_a_network_that_takes_the_length_of_its_inputs_is_told() -> None:
    run = fitted(Counts(True), tp.Normal(scale=1.0), draws)
    with pytest.raises(
        NetworkError, match=r"as len\(x\).*`rows = len\(x\) if .*` in Counts.*x\.shape\[0\].*dynamic_batch"
    ):
        export_predictive(run, X)
    for network, settings, rows in ((Counts(True), {"dynamic_batch": False}, len(X)), (Counts(False), {}, len(X) - 1)):
        run = fitted(network, tp.Normal(scale=1.0), draws)
        found = export_predictive(run, X, **settings).module()(X[:rows])["mean"]
        torch.testing.assert_close(found, run.predict(X[:rows]).mean(), atol=1e-5, rtol=1e-5)
