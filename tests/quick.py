"""Fast laws of every package, for `python -m pytest -m quick`: a file below tests/, or one of its functions."""

QUICK = (
    "algorithms/test_algorithms.py::test_scaffold_first_round_equals_fedavg",
    "config/test_config.py::test_every_shipped_config_is_read_and_in_range",
    "config/test_uses.py::test_flag_that_the_run_does_not_use_is_refused_with_what_would_use_it",
    "core/test_norms.py::test_the_spectral_norm_is_the_largest_singular_value",
    "data/test_text.py::test_labels_are_the_next_characters",
    "data/test_partition_rules.py::test_top_up_takes_from_the_largest_client_only",
    "engine/test_schedule.py::test_every_row_is_used_once_per_epoch_except_a_last_single_row",
    "models/test_norm.py::test_evaluation_uses_the_running_statistics_and_keeps_them",
    "runs/test_checkpoint.py::test_newest_checkpoint_is_restored_bit_for_bit_with_its_entries",
    "runs/test_files.py::test_failed_replacement_keeps_the_old_file",
    "test_architecture.py",
    "integrations/test_named_arrays.py::test_counters_are_rounded_means_and_dtypes_stay",
    "test_quick.py",
    "views/test_dry_run.py::test_slope_of_a_line_is_exact_and_samples_at_most_the_whole",
    "weightings/test_weightings.py::test_layerwise_weights_invert_each_tensors_norm",
    "weightings/test_weightings.py::test_modelwise_weights_invert_the_mean_over_all_tensors",
)
