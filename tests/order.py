"""The order of the test files, and which of them run in one process of pytest-xdist."""

TOGETHER = (
    ("algorithms/test_algorithms.py", "engine/test_untrained.py"),  # `worlds.any_shared_round`
    (
        "commands/test_report.py",
        "test_paper_claims.py",
        "test_paper_figures.py",
        "test_paper_values.py",
        "views/test_report_collect.py",
        "views/test_report_figures.py",
        "views/test_report_page.py",
        "views/test_report_statistics.py",
        "views/test_report_tables.py",
    ),  # statsmodels, pandas and Vega take seconds to import
)
"""Files below tests/ that share compiled programs or imports, which each process pays for once."""

SLOWEST = (
    "algorithms/test_algorithms.py",
    "engine/test_differentiable.py",
    "engine/test_federated_round.py",
    "engine/test_oracle.py",
    "commands/test_sim.py",
    "models/test_conv.py",
    "weightings/test_weightings.py",
    "engine/test_cohort_blocks.py",
    "engine/test_executors.py",
    "commands/test_commands.py",
    "runs/test_resume.py",
    "models/test_models.py",
    "commands/test_report.py",
    "weightings/test_baselines.py",
    "engine/test_chunk_of_rounds.py",
    "runs/test_contracts.py",
    "runs/test_programs.py",
    "models/test_resnet.py",
    "core/test_gradient_support.py",
    "models/test_groups_of_rows.py",
    "test_doctests.py",
    "engine/test_robust.py",
    "engine/test_eager.py",
    "algorithms/test_own_algorithm.py",
    "runs/test_sweeps.py",
    "commands/test_sweep.py",
    "models/test_vit.py",
    "models/test_pretrained.py",
    "integrations/test_named_arrays.py",
    "models/test_adapt.py",
    "engine/test_attacks.py",
    "weightings/test_signals.py",
    "models/test_model_options.py",
    "weightings/test_family.py",
)
"""Files below tests/ that take over five seconds of CPU, the slowest first: where a long file begins last, the other
process waits for it."""


def group_of(file: str) -> str:
    """Returns the first of the files that run in the same process."""
    return next((files[0] for files in TOGETHER if file in files), file)


def rank(file: str) -> int:
    """Returns the position of a file's group."""
    return SLOWEST.index(group_of(file)) if group_of(file) in SLOWEST else len(SLOWEST)
