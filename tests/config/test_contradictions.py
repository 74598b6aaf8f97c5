"""Settings that contradict each other, or that no run can have, are refused in one line."""

import pytest
from support.files import one_line

import fedvg_jax as fv
from fedvg_jax import config

TEXT = {"dataset": "literature", "model": "gru", "partition": "group"}
DP = {"dp.clip": 1.0, "weighting": "uniform"}
TABLE = {"dataset": "iris", "clients": 3, "alpha": 10.0}
REFUSED = [
    ({"partition": "file"}, "--partition file:FILE"),
    ({"partition": "official", "holdout": "global"}, "holdout global"),
    ({"partition": "balanced_client", "clients": 1}, "at least 2 clients"),
    ({"val_ratio": 0.0}, "external --validation.source"),
    ({"validation.source": "npz"}, "--validation.data-dir"),
    ({"validation.source": "clients:0.5", "holdout": "global"}, "clients:0.5 is used by --holdout client"),
    ({"validation.source": "clients:0"}, r"validation.source clients:VALUE takes a number in \(0, 1\]"),
    ({"local": "1.5:^head"}, "local must be REGEX, or SHARE:REGEX with a SHARE below 1; got 1.5:"),
    ({"validation.size": 1}, "validation.size must be >= 2"),
    ({"clients": 6, "corrupt.kind": "rotate", "corrupt.clients": 0.01}, "clients is none; use > 0.0833333"),
    ({"send": "topk:2"}, r"send topk:VALUE takes a number in \(0, 1\]; got topk:2"),
    ({"send": "topk:many"}, "send topk:VALUE takes a number .*; got topk:many"),
    ({"send": "none:1"}, "unknown send 'none:1'"),
    ({"robust": "median"}, "median ignores the weights of fedvg"),
    (
        {"robust": "median", "weighting": "uniform", "algorithm": "feddyn"},
        "server of algorithm feddyn also averages",
    ),
    ({"robust": "krum:4", "weighting": "uniform"}, r"at most \(K - 3\) / 2 .* K = 10"),
    ({"clients": 4, "hold": 1, "weighting": "permuted(fedvg)"}, "hold 1 of a cohort of 2 needs native, samples"),
    ({"clients": 4, "hold": 1, "weighting": "fltrust"}, "use --hold 0 or one of these"),
    ({"hold": 1, "weighting": "uniform", "robust": "median"}, "--robust mean"),
    (DP | {"robust": "median"}, "dp bounds weighted means, and not robust median"),
    (DP | {"local": "^classifier/"}, "dp does not account for what clients keep, as local"),
    (DP | {"selection": "size"}, "dp accounts for uniform cohorts; selection size"),
    (DP | {"normalise": "columns"}, "dp needs normalise none"),
    (DP | {"patience": 3}, "dp accounts for a fixed number of rounds"),
    (DP | {"record": "client_models"}, "record client_models stores the clients' models without noise"),
    (DP | {"tuning.steps": 1}, "dp needs an external validation.source"),
    (DP | {"dp.delta": 0.05}, "dp.delta must be below 1 / clients = 0.05; got 0.05"),
    ({"dp.clip": -1.0}, "dp.clip must be >= 0"),
    ({"hold": -1}, "hold must be >= 0; got -1"),
    ({"weighting": "samples+fedgv"}, "did you mean 'fedvg'"),
    ({"weighting": "permuted"}, r"did you mean 'permuted\(NAME\)'"),
    ({"algorithm": "elastic", "departures": "server-stats"}, "needs elastic-sensitivity"),
    (
        {"model": "vit_s16", "norm_layers": "group"},
        "--norm-layers is not used by --model vit_s16; it is",
    ),
    ({"model": "resnet18", "norm_layers": "frozen"}, "norm_layers frozen keeps .*name one by --init"),
    ({"record": "client_models", "keep": 0}, "in checkpoints, of which keep 0 writes none; use --keep 1 or more"),
    ({"send": "topk:"}, "send topk:VALUE takes a number"),
    ({"normalise": "imagnet"}, "did you mean 'imagenet'"),
    ({"selection": "power_of_choice:9"}, "takes the cohort's 10 to the 20 clients; got 9"),
    ({"selection": "power_of_choice", "departures": "cohorts"}, "--departures cohorts and a selection"),
    ({"selection": "power_of_choice", "placement": "host"}, "use placement device"),
    ({"algorithm": "ditto", "local": "^classifier/"}, "a personal model of each client, and local .classifier/ a part"),
    ({"algorithm": "ditto", "departures": "server-stats"}, "ditto cannot be used with the departure server-stats"),
    ({"local": "nosuch"}, "local nosuch matches no tensor; there are classifier/bias"),
    ({"local_epochs": "5:"}, "local_epochs must be a number >= 1, or MIN:MAX"),
    ({"local": "."}, "matches every trained tensor, so that nothing is shared"),
    ({"local": "^fc1/", "robust": "median", "weighting": "uniform"}, "which has one model"),
    ({"record": "personal_accuracy"}, "needs personal models; use --method ditto"),
    ({"record": "finetuned_accuracy", "holdout": "global"}, "record finetuned_accuracy needs test rows of every"),
    ({"record": "finetuned_accuracy", "finetune_epochs": 0}, "finetune_epochs must be"),
    ({"stop_at": "accuracy 0.9"}, "stop_at must be a metric of D_val and a number, such as"),
    ({"stop_at": "val_accuracy"}, "stop_at must be a metric of D_val and a number, such as"),
    ({"stop_at": "val_loss nan"}, "stop_at must be a metric of D_val and a number, such as"),
    ({"stop_at": "val_auc 0.9"}, "stop_at val_auc is not measured by this task; use one of val_loss"),
    (TEXT | {"model": "mlp"}, r"model mlp needs class labels.*y of literature is int32 \[3541, 64\]; use --model gru"),
    (TABLE | {"model": "gru"}, r"model gru takes sequences.*iris is float32 \[150, 4\].*use --model mlp"),
    (TABLE | {"model": "cnn"}, "model cnn takes images.*use mlp"),
    (TEXT | {"partition": "dirichlet"}, "partition dirichlet needs class labels.*use iid, quantity, group"),
    (TEXT | {"augment": "flip"}, "augment flip is for images"),
    (TEXT | {"normalise": "half"}, "normalise half is for images.*use none"),
    (TEXT | {"corrupt.kind": "rotate"}, "corrupt.kind rotate is for images.*use label_flip, label_noise"),
    (TEXT | {"validation.rho": 0.5}, "validation.rho 0.5 needs class labels"),
    (
        TEXT | {"validation.source": "npz", "validation.data_dir": "x", "val_ratio": 0.0},
        "validation.source npz is for images.*use --validation.source clients",
    ),
]


@pytest.mark.parametrize(("settings", "message"), REFUSED, ids=str)
def test_settings_that_cannot_work_are_refused_in_one_line(settings, message):
    with one_line(message):
        fv.simulation(config.check(config.apply(fv.Config(), settings, "test")))
