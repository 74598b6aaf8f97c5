# ruff: noqa: RUF009  the calls in the dataclasses return fields
"""The algorithms and weightings, each declared once: label, facts, hyperparameters and departures. No jax.

One with settings is a group of `Methods`, with its entry in the field of the group; the others are entries below.
Names, flags, presets, labels, checks, and the `defaults` of the factories derive from these. By default, the factory of
NAME is `algorithms.NAME:NAME` or `weightings.NAME:NAME`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from fedvg_jax.config import declare
from fedvg_jax.config.declare import Condition, Reference, group, is_not, is_one, referenced, setting, table, weighs_by
from fedvg_jax.config.fidelity import departs
from fedvg_jax.core.types import Hyperparameter, Range

T = TypeVar("T")


class Departure(NamedTuple):
    """A behaviour of the published code that an algorithm can have."""

    arguments: Mapping[str, Any] = {}
    """Those of the factory, for this behaviour."""
    used: tuple[Condition, ...] = ()
    """Further conditions that must hold for a run to have it."""


class AlgorithmFacts(NamedTuple):
    """What settings, checks and labels depend on of an algorithm, and how it is made."""

    label: str
    """Its spelling in papers."""
    make: Reference = ""
    departures: Mapping[str, Departure] = {}
    is_in_paper: bool = False
    """Whether FedVG's paper has it, with the defaults of its settings."""
    sends_messages: bool = False
    """Whether the server also averages messages of the clients other than their models."""
    has_personal_models: bool = False


class WeightingFacts(NamedTuple):
    """What settings and checks depend on of a weighting, and how it is made."""

    label: str = ""
    """Its spelling in papers, where that is not the name."""
    make: Reference = ""
    """Takes the task, or, without `takes_task`, nothing."""
    takes_task: bool = True
    """Without it, no row of D_val is read, so that `dp` accounts for sampled cohorts."""
    is_of_norms: bool = False
    """Whether the factory also takes the options of `fedvg`."""
    streams: bool = True
    """Whether it weighs a cohort block by block, without the models of the whole cohort."""


def _algorithm(settings: type[T], label: str, **facts: Any) -> T:
    """Returns the field of an algorithm's settings, which is named as their class."""
    used = is_one("algorithm", settings.__name__.lower())
    return group(settings, label, used, algorithm=AlgorithmFacts(label, **facts))


def _weighting(settings: type[T], **facts: Any) -> T:
    """Returns the field of a weighting's settings, which is named as their class."""
    name = settings.__name__.lower()
    return group(settings, f"Weighting {name}", weighs_by(name), weighting=WeightingFacts(**facts))


_ADAPTIVE = ("fedadam", "fedyogi", "fedadagrad")
_FEDVG = weighs_by("fedvg", "generalised")
_INVERTING = weighs_by("fedvg", "val_loss", "generalised")
_NOT_DELTA = is_not("fedvg.norm", "delta", "every other norm")
_FIRST_MOMENT = Condition(
    "algorithm",
    lambda config: (
        config.algorithm in ("fedadam", "fedyogi")
        or (config.algorithm == "fedadagrad" and departs(config, "adaptive-servers"))
    ),
    "fedadam, fedyogi, or fedadagrad with the departure adaptive-servers",
)


@dataclass(frozen=True, kw_only=True)
class Methods:
    """The settings of algorithms and weightings: a group for each that has any."""

    @dataclass(frozen=True)
    class FedVG:
        """FedVG's weights: inverse norms of each client's gradient on the shared validation set."""

        signal: str = setting("gradient", ("gradient", "delta", "fisher"), used=(_FEDVG, _NOT_DELTA))
        """Quantity that is measured for each client. gradient: of the loss on D_val; delta: of its model against the
        global model; fisher: trace of the empirical Fisher information."""
        norm: str = setting("l1", ("l1", "l2", "spectral", "spectral_l2", "delta"), used=(_FEDVG,))
        """Norm of the signal. l1 is published; spectral uses matrices only; spectral_l2 adds the L2 norm of vectors;
        delta is the L1 norm of the signal delta."""
        layer: str = setting("tensor", ("tensor", "module"), used=(_FEDVG,))
        """Layer whose norm is taken. tensor: every tensor (published); module: weight and bias together."""
        include: str = setting("", word="REGEX", used=(_FEDVG,))
        """Regular expression of the tensors that are measured, e.g. ^classifier/. It is searched for in each path
        "a/b/kernel"; empty selects all tensors."""
        granularity: str = setting("modelwise", ("modelwise", "layerwise", "blockwise"), used=(_FEDVG,))
        """Granularity of the weights. modelwise: one weight per client; layerwise: one per client and tensor;
        blockwise: one per client and network block."""
        eps: float = setting(1e-8, declare.ABOVE_0, hyper="eps", used=(_INVERTING,))
        """Number added to each norm before it is inverted."""
        mode: str = setting("train", ("train", "eval"), used=(_FEDVG, _NOT_DELTA, is_one("fedvg.signal", "gradient")))
        """Mode of BatchNorm while scoring. train: statistics of each minibatch (published); eval: running
        statistics."""

    fedvg: FedVG = group(FedVG, "FedVG", weighting=WeightingFacts("FedVG", is_of_norms=True))

    @dataclass(frozen=True)
    class Generalised:
        """The family of weightings that FedVG's is one of."""

        exponent: float = setting(1.0, Range(), hyper="exponent")
        """Exponent of the inverse norm. 1 is published, 0 gives uniform weights; below 0, clients with large norms
        weigh more."""
        temperature: float = setting(1.0, declare.ABOVE_0, hyper="temperature")
        """Temperature. Weights are raised to the power 1 / temperature; large values approach uniform weights."""
        mix: float = setting(0.0, declare.UNIT, hyper="mix")
        """Fraction of n_k / sum_j n_j in the weights. 0.5 is FedAvg + FedVG."""

    generalised: Generalised = _weighting(
        Generalised, make="weightings.family:generalised", is_of_norms=True, streams=False
    )

    @dataclass(frozen=True)
    class Fitted:
        """Weights that are fitted to D_val by optimisation."""

        rate: float = setting(1.0, declare.ABOVE_0, hyper="fit_rate")
        """Learning rate, per unit of loss."""

    fitted: Fitted = _weighting(Fitted, make="weightings.baselines:fitted", streams=False)

    @dataclass(frozen=True)
    class FedAvgM:
        """FedAvgM: momentum on the server."""

        momentum: float = setting(0.9, declare.BELOW_1, hyper="server_momentum")
        """Nesterov momentum beta of the server."""
        lr: float = setting(1.0, declare.ABOVE_0, hyper="avgm_lr")
        """Learning rate of the server."""

    fedavgm: FedAvgM = _algorithm(FedAvgM, "FedAvgM", make="algorithms.fedopt:fedavgm", is_in_paper=True)

    @dataclass(frozen=True)
    class FedOpt:
        """FedAdam, FedYogi and FedAdagrad: an adaptive optimiser on the server."""

        lr: float = setting(0.1, declare.ABOVE_0, hyper="server_lr")
        """Learning rate of the server."""
        b1: float = setting(0.9, declare.BELOW_1, hyper="b1", used=(_FIRST_MOMENT,))
        """Decay of the first moment (FedAdam, FedYogi). FedAdagrad has one only with the departure adaptive-servers."""
        b2: float = setting(0.999, declare.BELOW_1, hyper="b2", used=(is_one("algorithm", "fedadam", "fedyogi"),))
        """Decay of the second moment (FedAdam, FedYogi)."""
        eps: float = setting(1e-3, declare.ABOVE_0, hyper="server_eps")
        """Number tau that is added to the root of the second moment."""

    fedopt: FedOpt = group(FedOpt, "FedAdam, FedYogi, FedAdagrad", is_one("algorithm", *_ADAPTIVE))

    @dataclass(frozen=True)
    class FedProx:
        """FedProx: a proximal term in the clients' loss."""

        mu: float = setting(0.01, declare.FROM_0, hyper="mu")
        """Coefficient of the proximal term."""

    fedprox: FedProx = _algorithm(FedProx, "FedProx", is_in_paper=True)

    @dataclass(frozen=True)
    class Scaffold:
        """Scaffold: control variates."""

        eta_g: float = setting(1.0, declare.ABOVE_0, hyper="eta_g")
        """Learning rate of the server."""

    scaffold: Scaffold = _algorithm(
        Scaffold,
        "Scaffold",
        is_in_paper=True,
        sends_messages=True,
        departures={
            "scaffold-steps": Departure({"single_batches": True}),
            "scaffold-memory": Departure({"keeps": False}),
        },
    )

    @dataclass(frozen=True)
    class FedDyn:
        """FedDyn: a dynamic regulariser."""

        alpha: float = setting(0.1, declare.ABOVE_0, hyper="dyn_alpha")
        """Coefficient of the regulariser."""
        clip: float = setting(10.0, declare.ABOVE_0, hyper="clip")
        """Global norm to which a client's gradient is clipped."""

    feddyn: FedDyn = _algorithm(
        FedDyn,
        "FedDyn",
        is_in_paper=True,
        sends_messages=True,
        departures={
            "feddyn-regulariser": Departure({"quadratic": False}),
            "feddyn-weights": Departure({"native_weighting": "samples"}, (weighs_by("native"),)),
            "feddyn-average": Departure({"averages": False}, (weighs_by("fedvg"),)),
        },
    )

    @dataclass(frozen=True)
    class Elastic:
        """Elastic aggregation: sensitive tensors move less."""

        ratio: float = setting(0.3, declare.FRACTION, "data")
        """Fraction of a client's rows on which sensitivity is measured."""
        tau: float = setting(0.5, declare.FROM_0, hyper="tau")
        """Factor of the update of the most sensitive tensors. The least sensitive move by 1 + tau."""
        mu: float = setting(0.95, declare.BELOW_1, hyper="sensitivity_decay")
        """Decay of the moving average of sensitivities over minibatches."""

    elastic: Elastic = _algorithm(
        Elastic,
        "Elastic",
        is_in_paper=True,
        departures={"elastic-sensitivity": Departure({"official": True}), "elastic-rows": Departure()},
    )

    @dataclass(frozen=True)
    class Moon:
        """MOON: a model-contrastive term in the clients' loss."""

        mu: float = setting(1.0, declare.FROM_0, hyper="moon_mu")
        """Weight of the contrastive term."""
        tau: float = setting(0.5, declare.ABOVE_0, hyper="moon_tau")
        """Temperature of the similarities of features."""

    moon: Moon = _algorithm(Moon, "MOON")

    @dataclass(frozen=True)
    class FedNTD:
        """FedNTD: distillation of the global model's predictions among the classes that are not true."""

        beta: float = setting(1.0, declare.FROM_0, hyper="ntd_beta")
        """Weight of the distillation."""
        tau: float = setting(1.0, declare.ABOVE_0, hyper="ntd_tau")
        """Temperature of the logits."""

    fedntd: FedNTD = _algorithm(FedNTD, "FedNTD")

    @dataclass(frozen=True)
    class FedDecorr:
        """FedDecorr: a penalty on correlated features."""

        beta: float = setting(0.1, declare.FROM_0, hyper="decorr_beta")
        """Weight of the penalty."""

    feddecorr: FedDecorr = _algorithm(FedDecorr, "FedDecorr")

    @dataclass(frozen=True)
    class Ditto:
        """Ditto: a personal model of each client beside the global one."""

        lam: float = setting(1.0, declare.FROM_0, hyper="ditto_lam")
        """Lambda, the strength with which the global model attracts a personal one."""

    ditto: Ditto = _algorithm(Ditto, "Ditto", has_personal_models=True)


SETTINGS = table(Methods)
"""Dotted name -> setting of an algorithm or a weighting."""


_ENTRIES = [(field.name, field.metadata) for field in dataclasses.fields(Methods)]
_BY_REDDI = {"adaptive-servers": Departure({"official": True})}

ALGORITHMS: dict[str, AlgorithmFacts] = {
    "fedavg": AlgorithmFacts("FedAvg", is_in_paper=True),
    **{name: entry["algorithm"] for name, entry in _ENTRIES if "algorithm" in entry},
    "fedadam": AlgorithmFacts("FedAdam", "algorithms.fedopt:fedadam", _BY_REDDI),
    "fedyogi": AlgorithmFacts("FedYogi", "algorithms.fedopt:fedyogi", _BY_REDDI),
    "fedadagrad": AlgorithmFacts("FedAdagrad", "algorithms.fedopt:fedadagrad", _BY_REDDI),
    "fednova": AlgorithmFacts("FedNova", sends_messages=True),
}

WEIGHTINGS: dict[str, WeightingFacts] = {
    "native": WeightingFacts(),
    "samples": WeightingFacts(make="weightings.basic:samples", takes_task=False),
    "uniform": WeightingFacts(make="weightings.basic:uniform", takes_task=False),
    **{name: entry["weighting"] for name, entry in _ENTRIES if "weighting" in entry},
    "inverse_samples": WeightingFacts(make="weightings.baselines:inverse_samples", takes_task=False),
    "val_loss": WeightingFacts(make="weightings.baselines:val_loss"),
    "val_accuracy": WeightingFacts(make="weightings.baselines:val_accuracy"),
    "fltrust": WeightingFacts(make="weightings.baselines:fltrust", streams=False),
}


class LocalPart(NamedTuple):
    """A method that is FedAvg with local tensors."""

    label: str
    settings: Mapping[str, Any]


PERSONAL = {
    "fedper": LocalPart("FedPer", {"local": "^classifier/"}),
    "fedrep": LocalPart("FedRep", {"local": "0.5:^classifier/"}),
    "fedbn": LocalPart("FedBN", {"local": r"(^|/)(bn\d|norm|downsample_1/|\w+Norm_\d)"}),
}
"""FedPer (Arivazhagan et al. 2019) and FedRep (Collins et al. 2021) keep the head, FedBN (Li et al. 2021) the
normalisation layers."""


def label(name: str) -> str:
    """Returns a method as papers spell it; another text as it is."""
    entry = ALGORITHMS.get(name) or WEIGHTINGS.get(name) or PERSONAL.get(name)
    return entry[0] or name if entry else name


def factory(kind: str, name: str) -> Callable[..., Any]:
    """Returns the function that makes an algorithm or a weighting; `kind` is the package, algorithms or weightings."""
    facts = {"algorithms": ALGORITHMS, "weightings": WEIGHTINGS}[kind][name]
    return referenced(facts.make or f"{kind}.{name}:{name}")


def hyperparameters(*names: str) -> tuple[Hyperparameter, ...]:
    """Returns the hyperparameters of some settings of `Methods`, for `defaults` of an algorithm or a weighting.

    Args:
        *names: groups, such as fedopt, or settings, such as fedopt.lr; without any, all groups.

    >>> [(parameter.name, parameter.value, parameter.doc) for parameter in hyperparameters("feddyn", "fedopt.lr")]
    [('server_lr', 0.1, 'fedopt.lr'), ('dyn_alpha', 0.1, 'feddyn.alpha'), ('clip', 10.0, 'feddyn.clip')]
    """
    return tuple(
        Hyperparameter(declared.facts.hyper, declared.default, range.low, range.high, dotted, *range[2:4])
        for dotted, declared in SETTINGS.items()
        if (range := declared.range)
        and declared.facts.hyper
        and (not names or {dotted, dotted.partition(".")[0]} & {*names})
    )
