"""What decides the paper's claims: functions of mean accuracies, the paper's or ours, and functions of run folders."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from benchmarks.studies.paper import clients
from benchmarks.studies.paper.clients import (
    ACCURACY,
    depths,
    layer_norms,
    layers_of,
    of_present,
    rank_correlation,
    weighting_of,
)
from benchmarks.studies.paper.values import (
    DIRICHLET,
    EXTERNAL,
    Value,
    mean_and_std,
    paper_name,
    paper_values,
)
from fedvg_jax.study import statistics
from fedvg_jax.study.groups import Group, Study
from fedvg_jax.study.places import Seeds, condition_text
from fedvg_jax.study.run import Run

BASES = ("FedAvg", "FedAvgM", "FedProx", "Scaffold", "FedDyn", "Elastic")
RHO = "validation.rho"
WITHIN = 2.3
"""Points that the paper states for external validation sets."""

FINDS_BALANCED = {"l1": True, "l2": True, "spectral": False, "delta": False}
"""Norm -> whether the paper states that it finds the balanced client."""

MIN_PAIRS = 5
"""Fewest pairs of data set and model with which a one-sided signed-rank test can reach p < 0.05."""


class Finding(NamedTuple):
    """What a measure finds."""

    holds: bool
    text: str


Values = Sequence[Value]


def our_values(study: Study) -> list[Value]:
    """Returns the means in the final round of the methods that the paper has; none without accuracy.

    Left out are partitions without the paper's alpha, and values of several groups, see `ambiguities`.
    """
    return [values[0] for values in _values_by_key(study).values() if len(values) == 1]


def ambiguities(study: Study) -> list[str]:
    """Returns a line for every value of the paper that several groups stand for, such as two learning rates."""
    return [
        f"{method} on {dataset}, {model}, alpha {alpha:g} has {len(values)} conditions that differ in other settings"
        for (dataset, model, method, alpha), values in _values_by_key(study).items()
        if len(values) > 1
    ]


def _values_by_key(study: Study) -> dict[tuple[str, str, str, float], list[Value]]:
    """Returns (data set, model, method, alpha) -> the means of all groups that stand for that value of the paper."""
    by_key: dict[tuple[str, str, str, float], list[Value]] = {}
    for group in study.groups.values() if study.outcome.metric == "accuracy" else ():
        finals = list(group.results().values())
        if finals:
            run = next(iter(group.runs.values()))
            config, name = run.config, paper_name(run.config, run.custom)
            if name and config.partition in DIRICHLET:
                key = config.dataset, config.model, name, config.alpha
                by_key.setdefault(key, []).append(Value(*key, *mean_and_std(finals)))
    return by_key


def _by_method(values: Values, field: str = "mean") -> pd.DataFrame:
    """Returns the means or deviations, a row for each (data set, model, alpha) and a column for each method."""
    frame = pd.DataFrame(values, columns=[*Value._fields])
    return frame.groupby([*SETTING, "method"], sort=False)[field].first().unstack(sort=False)


SETTING = ["dataset", "model", "alpha"]


def _at_smallest(by_method: pd.DataFrame) -> pd.DataFrame:
    """Returns the rows at alpha 0.05."""
    return by_method[by_method.index.get_level_values("alpha") == 0.05]


def _gaps(by_method: pd.DataFrame, method: str, other: str) -> pd.Series:
    """Returns a method minus another one, where both ran."""
    if not {method, other} <= {*by_method}:
        return pd.Series(dtype=float)
    return (by_method[method] - by_method[other]).dropna()


def _ranks(values: Values) -> pd.DataFrame:
    """Returns FedVG's place among the methods that ran, 1 for the best, and their number, where two others ran."""
    by_method = _by_method(values).reindex(columns=["FedVG", *BASES])
    rivals = by_method[[*BASES]]
    place = 1 + rivals.gt(by_method.FedVG, axis=0).sum(axis=1)
    of = 1 + rivals.notna().sum(axis=1)
    return pd.DataFrame({"place": place, "of": of})[by_method.FedVG.notna() & (of > 2)]


def _pair_text(pair: Sequence[str], pairs: Collection[tuple[str, str]]) -> str:
    """Returns " on DATASET, MODEL"; empty where there is only one such pair."""
    return f" on {', '.join(pair)}" if len(pairs) > 1 else ""


# --- measures of values


def rank_at_smallest_alpha(values: Values) -> Finding | None:
    """Holds if FedVG is first or second at alpha 0.05 for every pair of data set and model."""
    ranks = _at_smallest(_ranks(values)).sort_values(["place", "of"])
    if ranks.empty:
        return None
    shown = ", ".join(f"{rank.place} of {rank.of}" for rank in ranks.itertuples())
    return Finding(bool(ranks.place.max() <= 2), f"rank {shown} at alpha 0.05")


def best_on_organamnist(values: Values) -> Finding | None:
    """Holds if FedVG is first at every alpha on OrganAMNIST."""
    ranks = _ranks([value for value in values if value.dataset == "organamnist"]).sort_index()
    if ranks.empty:
        return None
    pairs = {(dataset, model) for dataset, model, _ in ranks.index}
    shown = ", ".join(
        f"{rank.place} of {rank.of} at {alpha:g}{_pair_text(pair, pairs)}"
        for ((*pair, alpha), rank) in ranks.iterrows()
    )
    return Finding(bool((ranks.place == 1).all()), f"rank {shown}")


def low_variance(values: Values) -> Finding | None:
    """Holds if FedVG's deviation is at most the median of the other methods' in more than half of the settings."""
    deviations = _by_method(values, "std").reindex(columns=["FedVG", *BASES])
    others = deviations[[*BASES]]
    deviations = deviations[deviations.FedVG.notna() & (others.notna().sum(axis=1) > 1)]
    if deviations.empty:
        return None
    below = (deviations.FedVG <= deviations[[*BASES]].median(axis=1)).sum()
    text = f"deviation at most the median in {below} of {len(deviations)} conditions"
    return Finding(bool(below > len(deviations) / 2), text)


def gain_over_fedavg(values: Values) -> Finding | None:
    """Holds if FedVG is above FedAvg at alpha 0.05 with every data set and network except transformers."""
    return _gain([value for value in values if not value.model.startswith("vit")])


def gain_with_transformers(values: Values) -> Finding | None:
    """Holds if FedVG is above FedAvg with every vision transformer at alpha 0.05."""
    return _gain([value for value in values if value.model.startswith("vit")])


def _gain(values: Values) -> Finding | None:
    """Returns whether FedVG minus FedAvg is above 0 at alpha 0.05 everywhere."""
    gains = _at_smallest(_by_method(values)).pipe(_gaps, "FedVG", "FedAvg").sort_values()
    if gains.empty:
        return None
    shown = ", ".join(f"{gain:+.2f}" for gain in gains)
    return Finding(bool(gains.min() > 0), f"FedVG minus FedAvg {shown} points")


def significance_over_pairs(values: Values) -> Finding | None:
    """Holds if the one-sided signed-rank test over the pairs has p < 0.05 at alpha 0.05 against most of the methods.

    That is the test which gives the paper's statements. The text also counts what two-sided tests and Holm's correction
    over all tests leave.
    """
    tested = {}
    for alpha, at_alpha in _by_method(values).groupby(level="alpha"):
        for method in BASES:
            gaps = _gaps(at_alpha, "FedVG", method).to_numpy().round(9)
            if len(gaps) >= MIN_PAIRS:
                tested[method, alpha] = gaps
    one_sided = pd.Series(
        {key: signed_rank_p(gaps, is_one_sided=True) for key, gaps in tested.items()}
    )
    two_sided = [signed_rank_p(gaps, is_one_sided=False) for gaps in tested.values()]
    corrected = statistics.holm([*one_sided])
    at_smallest = one_sided[[alpha == 0.05 for _, alpha in tested]]
    if at_smallest.empty:
        return None
    counts = {"one-sided": one_sided, "two-sided": two_sided, "with Holm": corrected}
    listed = ", ".join(f"{_significant(p)} {name}" for name, p in counts.items())
    significant, count = _significant(at_smallest), len(at_smallest)
    text = f"{significant} of {count} methods at alpha 0.05; of all {len(one_sided)} tests {listed}"
    return Finding(significant > count / 2, text)


def signed_rank_p(gaps: np.ndarray, is_one_sided: bool) -> float:
    """Returns the exact p of the signed-rank test over all patterns of signs; a side is that gaps are positive.

    SciPy's permutations, which it needs for ties, take 400 s for all tests.
    """
    ranks = stats.rankdata(np.abs(gaps[gaps != 0]))
    patterns = np.array(list(itertools.product((-1, 1), repeat=len(ranks)))) @ ranks
    observed = np.sign(gaps[gaps != 0]) @ ranks
    if not is_one_sided:
        patterns, observed = np.abs(patterns), abs(observed)
    return float((patterns >= observed).mean())


def _significant(p_values: Iterable[float]) -> int:
    return sum(p < statistics.LEVEL for p in p_values)


def improved_cells(values: Values) -> Finding | None:
    """Holds if X + FedVG is above X in more than half of the settings, for every base method X that ran both ways."""
    by_method = _by_method(values)
    gaps = {base: _gaps(by_method, f"{base} + FedVG", base) for base in BASES}
    gaps = {base: gap for base, gap in gaps.items() if len(gap)}
    if not gaps:
        return None
    text = ", ".join(f"{base} {(gap > 0).sum()} of {len(gap)}" for base, gap in gaps.items())
    return Finding(all((gap > 0).mean() > 0.5 for gap in gaps.values()), text)


def external_within(values: Values) -> Finding | None:
    """Holds if FedVG with an external validation set is within 2.3 points of FedVG with the clients' own."""
    by_method = _by_method(values)
    gaps = pd.DataFrame({name: _gaps(by_method, name, "FedVG") for name in EXTERNAL.values()})
    gaps = gaps.reindex(by_method.index).stack().dropna()
    if gaps.empty:
        return None
    pairs = {(dataset, model) for dataset, model, *_ in gaps.index}
    texts = [
        f"{name.split('=')[1]} {gap:+.2f} at {alpha:g}{_pair_text(pair, pairs)}"
        for (*pair, alpha, name), gap in gaps.items()
    ]
    return Finding(bool(gaps.abs().max() <= WITHIN + 1e-9), ", ".join(texts))


def best_granularities(values: Values) -> Finding | None:
    """Holds if no granularity is the best everywhere; one that ties with the best is the best, too."""
    by_method = _by_method(values)
    ran = by_method[[name for name in by_method if name in GRANULARITIES]]
    means = ran.T.groupby(GRANULARITIES).first().T.dropna(thresh=2)
    if means.empty:
        return None
    counts = means.eq(means.max(axis=1), axis=0).sum()
    listed = ", ".join(f"{name} {count}" for name, count in counts.items() if count)
    return Finding(bool(counts.max() < len(means)), f"best: {listed}")


GRANULARITIES = {
    "FedVG": "modelwise",
    "FedVG (Modelwise)": "modelwise",
    "FedVG (Layerwise)": "layerwise",
    "FedVG (Blockwise)": "blockwise",
}
"""The paper's name of a method -> granularity."""


# --- measures of studies


def steady_over_rho(study: Study) -> Finding | None:
    """Holds if FedVG's lowest mean over rho is within one deviation over seeds of its mean with rho off.

    Computed for every setting, such as alpha, and shown beside FedAvg's mean.
    """
    if study.outcome.metric != "accuracy":
        return None
    rho, others = {}, {}
    for i, condition in enumerate(study.conditions):
        rho[i] = dict(condition).get(RHO)
        others[i] = tuple(pair for pair in condition if pair[0] != RHO)
    runs = study.frame.assign(
        rho=study.frame.condition.map(rho), others=study.frame.condition.map(others)
    )
    holds, texts = True, []
    for condition, of_condition in runs.dropna(subset=["rho"]).groupby("others", sort=False):
        by_method = dict(iter(of_condition.groupby("method").final))
        ours = of_condition[of_condition.method == "fedvg"].groupby("rho").final
        means, deviation = ours.mean().dropna(), ours.std().get(0.0, math.nan)
        if len(means) < 2 or not math.isfinite(deviation):
            continue
        listed = ", ".join(f"{mean:.1f} at {rho:g}" for rho, mean in means.items())
        fedavg = f"; FedAvg {by_method['fedavg'].mean():.1f}" if "fedavg" in by_method else ""
        where = f" ({condition_text(condition)})" if condition else ""
        texts.append(f"FedVG {listed}, deviation {deviation:.1f}{fedavg}{where}")
        holds = holds and bool(means.min() >= means[0.0] - deviation)
    return Finding(holds, "; ".join(texts)) if texts else None


def balanced_client_by_norm(study: Study) -> Finding | None:
    """Holds if the balanced client 0 weighs the most of all clients under L1 and L2, and not under spectral and delta.

    All four norms are needed; every group with one of them counts. Weights are means over the later half of the rounds
    and over runs.
    """
    found: dict[str, list[tuple[Group, bool, float]]] = {norm: [] for norm in FINDS_BALANCED}
    for group in study.groups.values():
        run = next(iter(group.runs.values()), None)
        if run and run.config.partition == "balanced_client" and "fedvg" in weighting_of(run):
            found.get(run.config.fedvg.norm, []).append((group, *_weight_of_client_0(group)))
    if not all(found.values()):
        return None
    texts = [
        f"{norm} {share:.2f}{' (largest)' if is_largest else ''}{_group_text(group) if len(several) > 1 else ''}"
        for norm, several in found.items()
        for group, is_largest, share in several
    ]
    holds = all(
        is_largest == FINDS_BALANCED[norm]
        for norm, several in found.items()
        for _, is_largest, _ in several
    )
    return Finding(holds, f"weight times cohort size of the balanced client: {', '.join(texts)}")


def _group_text(group: Group) -> str:
    """Returns method and condition of a group in parentheses."""
    return f" ({', '.join(filter(None, (group.method, condition_text(group.condition))))})"


def _weight_of_client_0(group: Group) -> tuple[bool, float]:
    """Returns whether client 0 has the largest mean weight, and that weight times cohort size."""
    shares = pd.concat(
        pd.Series(record["weights"], record["clients"], float) * len(record["clients"])
        for run in group.runs.values()
        for record in run.records[len(run.records) // 2 :]
    )
    means = shares.fillna(0.0).groupby(level=0).mean()
    share = means.get(0, math.nan)
    return bool(share == means.max()), float(share)


def norms_grow_with_depth(study: Study) -> Finding | None:
    """Holds if the depths of layers and their mean gradient norms correlate by ranks, with an interval above 0."""
    correlations, counts = [], set()
    for seeds, run in _runs(study):
        norms = [n for record in run.records if (n := layer_norms(record)) is not None]
        layers = layers_of(run)
        weights = [i for i, name in enumerate(layers) if not name.endswith(("bias", "scale"))]
        if norms and len(weights) >= 3 and len(layers) == norms[0].shape[1]:
            mean = np.nanmean(np.concatenate(norms), 0)
            depth = depths([layers[i] for i in weights])
            counts.add(len(weights))
            correlations.append((seeds, rank_correlation(depth, [float(mean[i]) for i in weights])))
    layers = " and ".join(map(str, sorted(counts)))
    return _mean_correlation(
        correlations, f"rank correlation of depth and norm over {layers} layers", _is_above_zero
    )


def weights_rank_client_models(study: Study) -> Finding | None:
    """Holds if FedVG's weights correlate with the accuracy of the clients' models, with an interval above 0."""
    return _weight_correlations(
        study, lambda run, record: record.get(ACCURACY), "accuracy", _is_above_zero
    )


def weights_against_class_distance(study: Study) -> Finding | None:
    """Holds if the correlation of FedVG's weights with the clients' distance to D_val's classes includes 0."""

    def distance(run: Run, record: Mapping) -> list[float] | None:
        counts, target = (
            run.partition.get("counts"),
            run.partition.get("validation", {}).get("counts"),
        )
        if not counts or not target or not sum(target):
            return None
        share = np.array(target) / sum(target)
        clients = [
            np.array(counts[client]) / max(1, sum(counts[client])) for client in record["clients"]
        ]
        return [float(abs(client - share).sum() / 2) for client in clients]

    return _weight_correlations(
        study, distance, "distance of classes", lambda low, high: low <= 0 <= high
    )


def weights_against_overlap(study: Study) -> Finding | None:
    """Holds if the correlation of FedVG's weights with having rows in D_val, which some have, includes 0."""

    def overlap(run: Run, record: Mapping) -> list[float] | None:
        own = run.partition.get("validation", {}).get("clients")
        return [float(client in own) for client in record["clients"]] if own else None

    return _weight_correlations(
        study, overlap, "rows in the validation set", lambda low, high: low <= 0 <= high
    )


def head_against_body(study: Study) -> Finding | None:
    """Holds if weights by validation loss follow the head more than the body and FedVG's weights do not.

    A rule's number is the mean of `clients.head_minus_body` over the rounds of a run; the 95 % interval is above 0, or
    is not.
    """
    by_run = [(seeds, clients.head_minus_body(run)) for seeds, run in _runs(study)]
    findings = []
    for rule, title in clients.RULES.items():
        gaps = [(key, float(np.mean(of[rule]))) for key, of in by_run if of[rule]]
        name = f"{title}: correlation with the head minus the body"
        findings.append(_mean_correlation(gaps, name, _is_above_zero))
    by_loss, by_gradient = findings
    if by_loss is None or by_gradient is None:
        return None
    return Finding(by_loss.holds and not by_gradient.holds, f"{by_loss.text}; {by_gradient.text}")


def _is_above_zero(low: float, high: float) -> bool:
    return low > 0


def _weight_correlations(
    study: Study,
    other: Callable[[Run, Mapping], Sequence[float] | None],
    name: str,
    holds: Callable[[float, float], bool],
) -> Finding | None:
    """Returns the finding on the rank correlation of FedVG's weights with another number of the clients.

    Args:
        study: runs of the weighting fedvg are used.
        other: (run, record) -> a number per client of the cohort; None where it is not recorded.
        name: of that number.
        holds: (low, high) of the 95 % interval -> verdict.
    """
    correlations = []
    for seeds, run in _runs(study):
        if weighting_of(run) != "fedvg":
            continue
        values = [
            rank_correlation(of_present(run, r, r["weights"]), v)
            for r in run.records
            if (v := other(run, r))
        ]
        correlations.append((seeds, pd.Series(values, dtype=float).mean()))
    return _mean_correlation(correlations, f"rank correlation of weight and {name}", holds)


def _runs(study: Study) -> Iterator[tuple[Seeds, Run]]:
    """Yields every run of a study with its seeds."""
    for group in study.groups.values():
        yield from group.runs.items()


def _mean_correlation(
    correlations: Sequence[tuple[Seeds, float]],
    name: str,
    holds: Callable[[float, float], bool],
) -> Finding | None:
    """Returns the finding on the mean correlation over the seeds of a study.

    Runs of one seed share their partition and their initial model, so they are averaged before the 95 % t interval.

    Args:
        correlations: the seeds of a run, and its correlation.
        name: of the correlation.
        holds: (low, high) of the interval -> verdict.

    Returns:
        The finding; None for fewer than two seeds.
    """
    of_runs = pd.DataFrame(correlations, columns=["seeds", "value"]).dropna()
    means = of_runs.groupby("seeds").value.mean().to_dict()
    if len(means) < 2:
        return None
    compared = statistics.compare(means, dict.fromkeys(means, 0.0))
    low, high = compared.t_interval
    interval = "in each of" if low == high else f"[{low:+.2f}, {high:+.2f}] over"
    found = f"{name} {compared.mean:+.2f} {interval} {compared.n} seeds, {len(of_runs)} runs"
    return Finding(holds(low, high), found)


OF_VALUES: dict[str, Callable[[Values], Finding | None]] = {
    measure.__name__: measure
    for measure in (
        *(
            rank_at_smallest_alpha,
            best_on_organamnist,
            low_variance,
            gain_over_fedavg,
            gain_with_transformers,
        ),
        *(significance_over_pairs, improved_cells, external_within, best_granularities),
    )
}
"""Measure -> function of mean accuracies, which also computes the paper's numbers."""


@functools.cache
def printed(measure: str) -> Finding | None:
    """Returns what a measure of `OF_VALUES` finds in the paper's tables."""
    return OF_VALUES[measure](paper_values())


OF_STUDY: dict[str, Callable[[Study], Finding | None]] = {
    measure.__name__: measure
    for measure in (
        *(steady_over_rho, balanced_client_by_norm, norms_grow_with_depth),
        *(
            weights_rank_client_models,
            weights_against_class_distance,
            weights_against_overlap,
            head_against_body,
        ),
    )
}
"""Measure -> function of a study."""
