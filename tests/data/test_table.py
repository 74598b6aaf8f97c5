"""Tables: their columns are encoded by the training rows alone, from Python and from a .csv file alike."""

import base64
import dataclasses
import json
import pickle

import numpy as np
import pytest
from sklearn import show_versions
from support.files import usage_error

import fedvg_jax as fv
from fedvg_jax import prepare
from fedvg_jax.data import table
from fedvg_jax.models import pretrained
from fedvg_jax.runs.record import folder, provenance

pandas = pytest.importorskip("pandas")
compose = pytest.importorskip("sklearn.compose")
preprocessing = pytest.importorskip("sklearn.preprocessing")

RNG = np.random.default_rng(2)
T = 120
CITY = RNG.choice(["Ulm", "Rom", "Oslo"], T).astype(object)
AGE = RNG.normal(50, 10, T)
FRAME = pandas.DataFrame(
    {"age": AGE, "city": CITY, "flag": RNG.random(T) > 0.5, "site": np.arange(T) % 3}
)
FRAME["outcome"] = np.where((AGE > 50) ^ (CITY == "Rom"), "ill", "healthy")
FRAME.loc[5, "age"], FRAME.loc[9, "city"] = np.nan, None
OF_TABLE = {"label": "outcome", "group": "site"}
CONFIG = fv.Config(
    clients=3,
    join_ratio=1.0,
    partition="group",
    model="linear",
    rounds=2,
    eval_every=1,
    devices="1",
)


def simulated(frame=FRAME, config=CONFIG, **others):
    return fv.simulation(config, data=frame, **OF_TABLE | others)


def encoded_by_hand(rows):
    """Returns the inputs of all rows, encoded by the statistics of some, in float64."""
    age, flag = FRAME["age"].to_numpy(float), FRAME["flag"].to_numpy(float)
    age = np.where(np.isnan(age), np.nanmedian(age[rows]), age)
    numbers = np.stack([age, flag], 1)
    numbers = (numbers - numbers[rows].mean(0)) / numbers[rows].std(0)
    counts = FRAME["city"].iloc[rows].value_counts()
    city = FRAME["city"].where(FRAME["city"].notna(), counts.index[0]).to_numpy(object)
    return np.hstack([numbers, city[:, None] == np.array([["Oslo", "Rom", "Ulm"]], object)])


def test_columns_are_encoded_by_the_training_rows_of_all_clients_alone():
    sim = simulated()
    train = np.concatenate(sim.partition.train)
    np.testing.assert_allclose(sim.data.pool.x, encoded_by_hand(train), atol=1e-6)
    changed = FRAME.copy()
    test = np.concatenate(sim.partition.test)
    changed.loc[test, "age"] = 1e6
    moved = simulated(changed)
    np.testing.assert_array_equal(moved.data.pool.x[train], sim.data.pool.x[train])


def test_labels_are_classes_in_sorted_order_and_groups_are_clients():
    sim = simulated()
    assert sim.arrays.class_names == ("healthy", "ill")
    assert (sim.arrays.y == (FRAME["outcome"] == "ill")).all()
    parts = zip(*sim.partition, strict=True)
    sites = [{*FRAME["site"].iloc[np.concatenate(rows)]} for rows in parts]
    assert sites == [{0}, {1}, {2}]


def test_a_csv_file_is_the_same_run_as_its_frame(tmp_path):
    FRAME.to_csv(tmp_path / "patients.csv", index=False)
    of_file = {"dataset": "csv", "data_dir": tmp_path / "patients.csv", **OF_TABLE}
    config = dataclasses.replace(CONFIG, **of_file)
    for place in (tmp_path, tmp_path / "patients.csv"):
        sim = fv.simulation(dataclasses.replace(config, data_dir=place))
        np.testing.assert_array_equal(sim.data.pool.x, simulated().data.pool.x)
    runs = fv.run(config), fv.run(CONFIG, data=FRAME, **OF_TABLE)
    losses = [[record["test_loss"] for record in run.records] for run in runs]
    assert losses[0] == losses[1]


def test_prepare_shows_a_csv_file(tmp_path, capsys):
    FRAME.to_csv(tmp_path / "patients.csv", index=False)
    flags = ["--label", "outcome", "--group", "site", "--partition", "group", "--clients", "3"]
    assert prepare.main(["csv", "--data-dir", str(tmp_path), *flags]) == 0
    assert "patients: 120 rows" in capsys.readouterr().out


@pytest.mark.parametrize(
    "columns",
    [
        {"city": FRAME["city"].astype("category"), "outcome": FRAME["outcome"].astype("category")},
        {"age": FRAME["age"].astype("Float64"), "flag": FRAME["flag"].astype("boolean")},
        {
            "site": FRAME["site"].map({0: "a", 1: "b", 2: "c"}),
            "city": FRAME["city"].astype("string"),
        },
    ],
    ids=["category", "nullable", "texts"],
)
def test_rows_do_not_depend_on_how_pandas_stores_the_columns(columns):
    same = simulated(FRAME.assign(**columns))
    np.testing.assert_array_equal(same.data.pool.x, simulated().data.pool.x)


def test_a_custom_transformer_takes_the_place_of_the_default():
    is_number = compose.make_column_selector(dtype_include="number")
    log = preprocessing.FunctionTransformer(np.log1p)
    custom = compose.ColumnTransformer(
        [("age", preprocessing.MinMaxScaler(), ["age"]), ("log", log, is_number)]
    )
    frame = FRAME.fillna({"age": 50.0})
    sim = simulated(frame, transformer=custom)
    train = np.concatenate(sim.partition.train)
    age = frame["age"].to_numpy()
    np.testing.assert_allclose(
        sim.data.pool.x[:, 0], (age - age[train].min()) / np.ptp(age[train]), rtol=1e-5, atol=1e-6
    )
    np.testing.assert_allclose(sim.data.pool.x[:, 1], np.log1p(age), rtol=1e-6)
    assert not hasattr(custom, "transformers_"), "the caller's object was fitted"


def test_a_stored_model_encodes_new_rows_as_it_was_trained_on(tmp_path):
    config = dataclasses.replace(CONFIG, out=tmp_path / "run", export=tmp_path / "m.safetensors")
    finished, sim = fv.run(config, data=FRAME, **OF_TABLE), simulated()
    # in another order, and without groups
    new = FRAME[["outcome", "city", "age", "flag"]].iloc[:40].copy()
    new.loc[0, "city"] = "Bern"  # a category that no training row has
    checkpoint = next((tmp_path / "run" / "checkpoints").iterdir())
    for init in (finished.folder, checkpoint, config.export):
        of_model = dataclasses.replace(CONFIG, init=init, partition="iid")
        again = fv.simulation(of_model, data=new, label="outcome")
        np.testing.assert_array_equal(again.data.pool.x[1:], sim.data.pool.x[1:40])
        assert not np.asarray(again.data.pool.x[0, 2:]).any()
        with usage_error("init", "table"):
            fv.simulation(of_model, data=(np.ones((T, 5)), np.arange(T) % 2))
    of_frame = fv.evaluate(sim, finished.variables, new)
    y = (new["outcome"] == "ill").to_numpy(np.int32)
    assert of_frame == fv.evaluate(sim, finished.variables, (new, y))


def test_data_digest_is_of_the_table_and_of_its_transformer():
    def digest(frame=FRAME, **others):
        sim = simulated(frame, **others)
        return provenance.sources(sim.arrays, sim.partition, sim.data.pool, {}, ())["data"]

    renamed = FRAME.replace({"city": {"Rom": "Roma"}})  # the same order of categories
    scaler = compose.ColumnTransformer([("age", preprocessing.MinMaxScaler(), ["flag"])])
    digests = [digest(), digest(renamed), digest(transformer=scaler)]
    assert len({*digests}) == 3 and digest() == digests[0]


def test_some_rows_of_a_table_are_the_table_of_these_rows():
    some = simulated(config=dataclasses.replace(CONFIG, max_rows=60))
    alone = simulated(FRAME.iloc[::2])
    np.testing.assert_array_equal(some.data.pool.x, alone.data.pool.x)


def test_floats_are_targets_of_a_regression():
    arrays = table.from_frame(FRAME.fillna({"age": 0.0}), "age")
    assert arrays.class_names == () and arrays.y.dtype == np.float32


REFUSED = {
    "outcom": (FRAME, {"label": "outcom"}, "outcome"),
    "a missing group": (FRAME, {"group": "city"}, "row 9"),
    "dates": (FRAME.assign(day=pandas.date_range("2026-01-01", periods=T)), {}, "'day'"),
    "two columns": (FRAME.set_axis(["age", "age", *FRAME.columns[2:]], axis=1), {}, "age, age"),
    "no transformer": (FRAME, {"transformer": "scale"}, "transformer"),
    "a failing one": (FRAME, {"transformer": preprocessing.StandardScaler()}, "transformer"),
    "arrays": ((AGE, AGE), {}, "label"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_table_that_cannot_be_used_is_refused(kind):
    data, others, named = REFUSED[kind]
    with usage_error(named):
        fv.simulation(CONFIG, data=data, **OF_TABLE | others)


@pytest.mark.parametrize(
    ("setting", "value"),
    [("normalise", "half"), ("dp", {"clip": 1.0}), ("model", "lenet5"), ("partition", "iid")],
)
def test_settings_that_do_not_fit_a_table_are_refused(setting, value):
    config = dataclasses.replace(CONFIG, **{setting: value}, weighting="uniform")
    with usage_error(setting):
        simulated(config=config)


@pytest.mark.parametrize("setting", ["out", "export"])
@pytest.mark.parametrize("function", [lambda x: x, np.nan_to_num], ids=["lambda", "function"])
def test_a_transformer_that_cannot_be_stored_is_refused_only_where_the_run_is_stored(
    tmp_path, function, setting
):
    frame = FRAME[["flag", "site", "outcome"]]
    custom = preprocessing.FunctionTransformer(function)
    simulated(frame, transformer=custom)
    config = dataclasses.replace(CONFIG, **{setting: tmp_path / "m.safetensors"})
    with usage_error("transformer", "store"):
        simulated(frame, config, transformer=custom)


def calls(function, *arguments):
    """Returns an object whose pickle calls a function."""
    return type("Call", (), {"__reduce__": lambda self: (function, arguments)})()


DAMAGED = {
    "no pickle": b"{}",
    "a function": pickle.dumps(calls(print, "ran!")),
    "a function of NumPy": pickle.dumps(calls(np.save, "x.npy", 1)),
    "a file of NumPy": pickle.dumps(calls(np.memmap, "x.npy", "uint8", "w+", 0, (1,))),
    "a function of scikit-learn": pickle.dumps(calls(show_versions)),
    "a member": b"\x80\x04\x8c\x0csklearn.base\x8c\x0fwarnings.sys.exit\x93.",
    "an array": pickle.dumps(np.ones(1), 4),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_damaged_columns_are_refused_and_nothing_of_them_is_called(
    tmp_path, monkeypatch, capsys, kind
):
    monkeypatch.chdir(tmp_path)
    text = base64.b64encode(DAMAGED[kind]).decode()
    written = json.dumps({"transformer": text, "label": None, "class_names": []})
    (tmp_path / "columns.json").write_text(written)
    with usage_error("columns.json"):
        folder.read_columns(tmp_path)
    path = tmp_path / "m.safetensors"
    pretrained.write(path, {"w": np.ones(1)}, {pretrained.COLUMNS: written})
    with usage_error("m.safetensors"):
        pretrained.read_columns(path)
    assert not capsys.readouterr().out and len(list(tmp_path.iterdir())) == 2
