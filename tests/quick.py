"""Fast laws of every package, for `python -m pytest -m quick`: a file below tests/, or one of its functions."""

QUICK = (
    "algorithms/test_algorithms.py::test_scaffold_s_first_round_is_fedavg_s",
    "config/test_config.py::test_every_shipped_config_is_read_and_in_range",
    "config/test_uses.py::test_a_flag_that_the_run_does_not_use_is_refused_with_what_would_use_it",
    "core/test_norms.py::test_the_spectral_norm_is_the_largest_singular_value",
    "data/test_partition_rules.py::test_top_up_takes_from_the_largest_and_leaves_the_rest",
    "engine/test_schedule.py::test_every_row_is_used_once_per_epoch_but_a_last_single_one",
    "models/test_norm.py::test_evaluation_uses_the_running_statistics_and_keeps_them",
    "runs/test_checkpoint.py::test_the_newest_comes_back_in_every_bit_and_says_what_it_was_told",
    "runs/test_files.py::test_a_file_is_replaced_whole_or_stays_as_it_was",
    "test_architecture.py",
    "test_quick.py",
    "views/test_dry_run.py::test_the_slope_is_that_of_a_line_and_needs_no_more_than_the_whole",
    "weightings/test_weightings.py::test_layerwise_weights_invert_each_tensors_norm",
    "weightings/test_weightings.py::test_modelwise_weights_invert_the_mean_over_all_tensors",
)
