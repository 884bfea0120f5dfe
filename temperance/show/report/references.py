"""What to cite: this software, and the papers behind a method."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from temperance.core.version import __version__
from temperance.show.report.html import Markup, tag

TITLE = "Temperance: Bayesian deep learning as easy and nearly as cheap as ordinary training"
AUTHORS = "The Temperance developers"

_WENZEL = "Wenzel et al., How good is the Bayes posterior in deep neural networks really?, ICML 2020"
_GARIPOV = "Garipov et al., Loss surfaces, mode connectivity, and fast ensembling of DNNs, NeurIPS 2018"
_LEIMKUHLER = (
    "Leimkuhler & Matthews, Rational construction of stochastic numerical methods for molecular sampling, 2013"
)
_IZMAILOV = "Izmailov et al., Subspace inference for Bayesian deep learning, UAI 2019"
PAPERS = {
    "Ensemble": ("Lakshminarayanan et al., Simple and scalable predictive uncertainty estimation using deep ensembles, "
                 "NeurIPS 2017",),
    "Anchored": ("Pearce et al., Uncertainty in neural networks: approximately Bayesian ensembling, AISTATS 2020",),
    "RepulsiveEnsemble": ("D'Angelo & Fortuin, Repulsive deep ensembles are Bayesian, NeurIPS 2021",),
    "SVGD": ("Liu & Wang, Stein variational gradient descent, NeurIPS 2016",),
    "Laplace": ("MacKay, A practical Bayesian framework for backpropagation networks, Neural Computation 1992",
                "Daxberger et al., Laplace redux: effortless Bayesian deep learning, NeurIPS 2021"),
    "FunctionalLaplace": ("Immer et al., Improving predictions of Bayesian neural nets via local linearization, "
                          "AISTATS 2021",),
    "KFAC": ("Martens & Grosse, Optimizing neural networks with Kronecker-factored approximate curvature, ICML 2015",),
    "EKFAC": ("George et al., Fast approximate natural gradient descent in a Kronecker-factored eigenbasis, "
              "NeurIPS 2018",),
    "Tune": ("Immer et al., Scalable marginal likelihood estimation for model selection in deep learning, ICML 2021",),
    "SWAG": ("Maddox et al., A simple baseline for Bayesian uncertainty in deep learning, NeurIPS 2019",),
    "Variational": ("Graves, Practical variational inference for neural networks, NeurIPS 2011",
                    "Blundell et al., Weight uncertainty in neural networks, ICML 2015"),
    "MatrixNormal": ("Louizos & Welling, Structured and efficient variational deep learning with matrix Gaussian "
                     "posteriors, ICML 2016",),
    "TiedScale": ("Świątkowski et al., The k-tied normal distribution, ICML 2020",),
    "Radial": ("Farquhar et al., Radial Bayesian neural networks, AISTATS 2020",),
    "IVON": ("Shen et al., Variational learning is effective for large deep networks, ICML 2024",),
    "VOGN": ("Khan et al., Fast and scalable Bayesian deep learning by weight-perturbation in Adam, ICML 2018",
             "Osawa et al., Practical deep learning with Bayesian principles, NeurIPS 2019"),
    "MCDropout": ("Gal & Ghahramani, Dropout as a Bayesian approximation, ICML 2016",),
    "SGLD": ("Welling & Teh, Bayesian learning via stochastic gradient Langevin dynamics, ICML 2011",),
    "PSGLD": ("Li et al., Preconditioned stochastic gradient Langevin dynamics for deep neural networks, AAAI 2016",),
    "SGHMC": ("Chen et al., Stochastic gradient Hamiltonian Monte Carlo, ICML 2014", _WENZEL),
    "SGNHT": ("Ding et al., Bayesian sampling using stochastic gradient thermostats, NeurIPS 2014",),
    "BAOAB": (_LEIMKUHLER,),
    "LeimkuhlerMatthews": (_LEIMKUHLER,),
    "GGMC": ("Garriga-Alonso & Fortuin, Exact Langevin dynamics with stochastic gradients, AABI 2021",),
    "Cyclical": ("Zhang et al., Cyclical stochastic gradient MCMC for Bayesian deep learning, ICLR 2020",),
    "HMC": ("Duane et al., Hybrid Monte Carlo, Physics Letters B 1987",
            "Neal, MCMC using Hamiltonian dynamics, Handbook of Markov Chain Monte Carlo 2011"),
    "NUTS": ("Hoffman & Gelman, The no-U-turn sampler, JMLR 2014",
             "Betancourt, A conceptual introduction to Hamiltonian Monte Carlo, 2017"),
    "MCLMC": ("Robnik et al., Microcanonical Hamiltonian Monte Carlo, JMLR 2023",),
    "EllipticalSlice": ("Murray, Adams & MacKay, Elliptical slice sampling, AISTATS 2010",),
    "Tempered": ("Swendsen & Wang, Replica Monte Carlo simulation of spin glasses, Physical Review Letters 1986",),
    "Subspace": (_IZMAILOV,),
    "Curve": (_GARIPOV,),
    "CurveBasis": (_GARIPOV, _IZMAILOV),
}  # fmt: skip
"""Papers by the class of a method or of a part of it."""


def parts_of(value: Any) -> Iterator[str]:
    """The class names in a method, itself first, then what it wraps."""
    if is_dataclass(value) and not isinstance(value, type):
        yield type(value).__name__
        for part in fields(value):
            yield from parts_of(getattr(value, part.name))
    elif isinstance(value, tuple | list):
        for entry in value:
            yield from parts_of(entry)


def papers(method: Any) -> list[str]:
    """The papers behind a method and its parts, each once.

    >>> import temperance as tp
    >>> [paper.split(",")[0] for paper in papers(tp.Ensemble(tp.SWAG(tp.MAP()), 3))]
    ['Lakshminarayanan et al.', 'Maddox et al.']
    """
    found = [paper for name in parts_of(method) for paper in PAPERS.get(name, ())]
    return list(dict.fromkeys(found))


def citation() -> Markup:
    """How to cite this software, as text and as BibTeX."""
    text = f"{AUTHORS}. {TITLE}. Version {__version__}, 2026."
    bib = (
        "@software{temperance,\n"
        f"  author  = {{{{{AUTHORS}}}}},\n  title   = {{{TITLE}}},\n"
        f"  version = {{{__version__}}},\n  year    = {{2026}}\n}}"
    )
    return Markup(tag("p", text) + tag("pre", tag("code", bib)))
