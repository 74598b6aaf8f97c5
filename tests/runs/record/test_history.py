"""What a summary holds of the records of a run."""

from fedvg_jax.runs.record import history


def test_a_summary_has_the_final_loss_and_the_final_accuracy_wherever_both_exist():
    of_classes = [
        {"round": 1, "val_accuracy": 0.1, "val_loss": 2.0, "test_accuracy": 0.5, "test_loss": 1.5}
    ]
    summary = history.summarise(of_classes)
    assert (summary["test_accuracy_final"], summary["test_loss_final"]) == (0.5, 1.5)
    of_targets = [{"round": 1, "val_loss": 2.0, "test_loss": 1.5}]
    assert history.summarise(of_targets)["test_loss_final"] == 1.5
    assert "test_accuracy_final" not in history.summarise(of_targets)
