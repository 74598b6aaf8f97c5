"""Tables: their columns are encoded by the training rows alone, from Python and from a .csv file alike."""

import base64
import dataclasses
import functools
import json
import pickle

import numpy as np
import pytest
from sklearn import show_versions
from support.files import usage_error
from support.small_sweeps import timeless

import fedvg_jax as fv
from fedvg_jax import commands, prepare
from fedvg_jax.data import table
from fedvg_jax.models import pretrained
from fedvg_jax.runs.record import folder, provenance

pandas = pytest.importorskip("pandas")
compose = pytest.importorskip("sklearn.compose")
sklearn_base = pytest.importorskip("sklearn.base")
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


@functools.cache
def encoded():
    """Returns the encoded rows of `FRAME`."""
    return simulated().data.pool.x


def of_file(folder, frame=FRAME, **options):
    """Returns the settings of the .csv file of a frame, which it writes."""
    frame.to_csv(folder / "patients.csv", index=False, **options)
    return dataclasses.replace(CONFIG, dataset="csv", data_dir=folder, **OF_TABLE)


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
    train, test = np.concatenate(sim.partition.train), np.concatenate(sim.partition.test)
    np.testing.assert_allclose(sim.data.pool.x, encoded_by_hand(train), atol=1e-6)
    changed = FRAME.copy()
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
    of_folder = of_file(tmp_path)
    config = dataclasses.replace(of_folder, data_dir=tmp_path / "patients.csv")
    np.testing.assert_array_equal(fv.simulation(of_folder).data.pool.x, encoded())
    runs = fv.run(config), fv.run(CONFIG, data=FRAME, **OF_TABLE)
    (trial,) = fv.run_sweep(config, {"seed": [0]})
    first, *others = (timeless(run.records) for run in (*runs, trial.result))
    assert others == [first, first]


def test_prepare_shows_a_csv_file(tmp_path, capsys):
    of_file(tmp_path)
    flags = "--label outcome --group site --partition group --clients 3"
    assert prepare.main(["csv", "--data-dir", str(tmp_path), *flags.split()]) == 0
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
    np.testing.assert_array_equal(same.data.pool.x, encoded())


CODE = pandas.Series(np.arange(T) % 4 + 8)  # as texts, 10 sorts before 8
STORED = {
    "integers": CODE,
    "floats": CODE.astype(float),
    "texts": CODE.astype(str),
    "categories of floats": CODE.astype(float).astype("category"),
    "Int64": CODE.astype("Int64"),
    "objects": CODE.astype(object),
}


@pytest.mark.parametrize("kind", STORED)
def test_a_later_frame_has_the_same_categories_however_it_stores_them(kind):
    sim = simulated(FRAME.assign(code=CODE.astype("category")))
    later = FRAME.assign(code=STORED[kind])
    np.testing.assert_array_equal(sim.scaled_by.scaled(later), sim.data.pool.x)
    np.testing.assert_array_equal(sim.scaled_by.scaled(later[:1]), sim.data.pool.x[:1])


def test_a_label_has_the_same_classes_however_a_later_frame_stores_it():
    frame = FRAME.assign(outcome=CODE)
    sim = simulated(frame)
    for stored in STORED.values():
        labels = sim.scaled_by.batch(frame.assign(outcome=stored))[1]
        np.testing.assert_array_equal(labels, sim.arrays.y)


def test_in_a_csv_file_texts_are_texts_and_an_empty_field_is_missing(tmp_path):
    is_old = AGE > 50
    frame = FRAME.assign(
        country=np.where(is_old, "NA", "ZA"), outcome=np.where(is_old, "None", "ill")
    )
    sim = fv.simulation(of_file(tmp_path, frame))
    np.testing.assert_array_equal(sim.data.pool.x, simulated(frame).data.pool.x)
    assert sim.arrays.class_names == ("None", "ill")


def test_in_a_csv_file_the_usual_texts_are_missing_numbers(tmp_path):
    for missing in ("", "NA", "NaN", "null"):
        x = fv.simulation(of_file(tmp_path, na_rep=missing)).data.pool.x
        np.testing.assert_array_equal(x[:, :2], encoded()[:, :2])


LINES = {
    "two columns of one name": ("age,age,outcome\n1,2,ill\n3,4,well\n", ("name", "age, age")),
    "semicolons": ("age;outcome\n1;ill\n3;well\n", ("'outcome'", "comma", "age;outcome")),
    "an index": (",age,outcome\n0,1,ill\n1,2,well\n", ("name", ", age")),
    "a missing label": ("age,outcome\n1,ill\n2,\n", ("'outcome'", "row 1")),
}


@pytest.mark.parametrize("kind", LINES)
def test_a_csv_file_that_is_no_table_of_its_columns_is_refused(tmp_path, kind):
    text, named = LINES[kind]
    (tmp_path / "patients.csv").write_text(text)
    config = dataclasses.replace(CONFIG, dataset="csv", data_dir=tmp_path, label="outcome")
    with usage_error("patients.csv", *named):
        fv.simulation(config)


def test_the_command_line_divides_a_table_by_the_groups_that_it_names():
    words = "--dataset csv --data-dir FILE --label outcome --group site"
    assert commands.parse(words.split()).partition == "group"
    held_out = commands.parse(f"{words} --holdout group".split())
    assert (held_out.partition, held_out.holdout) == ("dirichlet", "group")
    with usage_error("--group", "--partition", "group"):
        commands.parse(f"{words} --partition iid".split())


def selecting(**condition):
    """Returns a transformer that counts categories in columns of some dtype."""
    encoder = preprocessing.OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    chosen = compose.make_column_selector(**condition)
    return compose.ColumnTransformer([("chosen", encoder, chosen)])


@pytest.mark.parametrize("dtype", ["category", "int64", "float64", bool, "number"])
def test_a_custom_transformer_takes_the_columns_as_scikit_learn_alone(dtype):
    frame = FRAME.assign(code=CODE, city=FRAME["city"].astype("category")).fillna({"age": 50.0})
    inputs, custom = frame.drop(columns=["site", "outcome"]), selecting(dtype_include=dtype)
    sim = simulated(frame, transformer=custom)
    alone = custom.fit(inputs.iloc[np.concatenate(sim.partition.train)]).transform(inputs)
    np.testing.assert_array_equal(sim.data.pool.x, alone)


class Centred(sklearn_base.TransformerMixin, sklearn_base.BaseEstimator):
    """An estimator without names of features."""

    def fit(self, frame, y=None):
        self.mean_ = frame["age"].mean()
        return self

    def transform(self, frame):
        return (frame[["age"]] - self.mean_).fillna(0.0)


def test_a_custom_estimator_takes_the_columns_of_a_later_frame():
    sim = simulated(transformer=Centred())
    later = FRAME.drop(columns="site").assign(more=1.0)
    np.testing.assert_array_equal(sim.scaled_by.scaled(later), sim.data.pool.x)


@pytest.mark.filterwarnings("ignore:For backward compatibility")  # of pandas 3
def test_a_stored_transformer_encodes_as_the_fitted_one(tmp_path):
    frame = FRAME.fillna({"age": 50.0, "city": "Ulm"})
    frame["city"] = frame["city"].astype(object)
    of_texts = compose.make_column_selector(dtype_include=object)
    clip = preprocessing.FunctionTransformer(np.clip, kw_args={"a_min": 0, "a_max": 50})
    log = preprocessing.FunctionTransformer(np.log1p)
    custom = compose.ColumnTransformer(
        [
            ("of", preprocessing.OneHotEncoder(dtype=int), of_texts),
            ("clip", clip, ["age"]),
            ("log", log, ["flag"]),
        ]
    )
    config = dataclasses.replace(CONFIG, out=tmp_path / "run")
    fv.run(config, data=frame, **OF_TABLE, transformer=custom)
    stored = folder.read_columns(config.out).scaled(frame)
    np.testing.assert_array_equal(stored, simulated(frame, transformer=custom).data.pool.x)


def test_names_of_columns_may_be_numbers_or_tuples():
    numbers = {name: i for i, name in enumerate(FRAME)}
    tuples = {name: ("x", name) for name in FRAME}
    for names in (numbers, tuples):
        columns = list(names.values())
        frame = FRAME.set_axis(pandas.Index(columns), axis=1)
        sim = simulated(frame, label=names["outcome"], group=names["site"])
        np.testing.assert_array_equal(sim.data.pool.x, encoded())


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
    first, second = np.transpose(sim.data.pool.x)
    scaled = (age - age[train].min()) / np.ptp(age[train])
    np.testing.assert_allclose(first, scaled, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(second, np.log1p(age), rtol=1e-6)
    assert not hasattr(custom, "transformers_"), "the caller's object was fitted"


def test_a_stored_model_encodes_new_rows_as_it_was_trained_on(tmp_path):
    config = dataclasses.replace(CONFIG, out=tmp_path / "run", export=tmp_path / "m.safetensors")
    finished = fv.run(config, data=FRAME, **OF_TABLE)
    # in another order, and without groups
    new = FRAME[["outcome", "city", "age", "flag"]].iloc[:40].copy()
    new.loc[0, "city"] = "Bern"  # a category that no training row has
    checkpoint = next((tmp_path / "run" / "checkpoints").iterdir())
    for init in (finished.folder, checkpoint, config.export):
        of_model = dataclasses.replace(CONFIG, init=init, partition="iid")
        again = fv.simulation(of_model, data=new, label="outcome")
        np.testing.assert_array_equal(again.data.pool.x[1:], encoded()[1:40])
        assert not np.asarray(again.data.pool.x[0, 2:]).any()
        with usage_error("init", "table"):
            fv.simulation(of_model, data=(np.ones((T, 5)), np.arange(T) % 2))
    sim, y = simulated(), (new["outcome"] == "ill").to_numpy(np.int32)
    of_frame = fv.evaluate(sim, finished.variables, new)
    assert of_frame == fv.evaluate(sim, finished.variables, (new, y))


def test_data_digest_is_of_the_table_and_of_its_transformer():
    def digest(frame=FRAME, **others):
        sim = simulated(frame, **others)
        return provenance.sources(sim)["data"]

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


def test_a_stored_model_is_refused_for_other_classes_and_another_transformer(tmp_path):
    fv.run(dataclasses.replace(CONFIG, out=tmp_path / "run"), data=FRAME, **OF_TABLE)
    config = dataclasses.replace(CONFIG, init=tmp_path / "run")
    renamed = FRAME.replace({"outcome": {"ill": "a", "healthy": "b"}})
    with usage_error("init", "healthy", "'a'"):
        simulated(renamed, config)
    with usage_error("transformer", "init"):
        simulated(config=config, transformer=Centred())
    with usage_error("'age'"):
        simulated(FRAME.drop(columns="age"), config)


OTHER_DATA = {
    "two columns of one name": (pandas.concat([FRAME, FRAME[["age"]]], axis=1), CODE * 0),
    "an array": (AGE[:, None], CODE * 0),
    "a dict": {"x": 1},
    "a text": FRAME.assign(age="old"),
    "dates": FRAME.assign(age=pandas.Timestamp("2026-01-01")),
    "infinity": FRAME.assign(age=np.inf),
    "another class": FRAME.assign(outcome="dead"),
    "a missing label": FRAME.assign(outcome=None),
}


@pytest.mark.parametrize("kind", OTHER_DATA)
def test_a_model_is_not_evaluated_on_other_data_than_its_table(kind):
    sim = simulated()
    with usage_error("data"):
        fv.evaluate(sim, sim.state.variables, OTHER_DATA[kind])


@pytest.mark.parametrize("target", ["old", np.inf, np.nan, pandas.Timestamp("2026-01-01")])
def test_targets_that_are_no_finite_numbers_are_refused(target):
    with usage_error("data", "'age'"):
        table.labels_of(FRAME.assign(age=target), "age", ())


def test_settings_do_not_name_columns_of_a_frame():
    with usage_error("label", "Config"):
        simulated(config=dataclasses.replace(CONFIG, label="outcome"))


def test_a_frame_that_pandas_cannot_hold_is_refused_with_what_to_install():
    class Polars:
        columns = ("age",)

        def to_pandas(self):
            raise ModuleNotFoundError("No module named 'pyarrow'")

    with usage_error("data", "pip install pandas pyarrow"):
        simulated(Polars())


def test_a_column_of_many_categories_is_refused():
    few, many = (np.arange(300) % count for count in (150, 151))
    frame = pandas.DataFrame({"age": np.arange(300.0), "label": many % 2})
    assert table.from_frame(frame.assign(id=few.astype(str))).table
    assert table.from_frame(frame.assign(id=many)).table, "numbers are no categories"
    for ids in (many.astype(str), pandas.Categorical(many)):
        with usage_error("'id'", "150"):
            table.from_frame(frame.assign(id=ids))


DAY = pandas.date_range("2026-01-01", periods=T)
REFUSED = {
    "outcom": (FRAME, {"label": "outcom"}, "outcome"),
    "a missing group": (FRAME, {"group": "city"}, "row 9"),
    "dates": (FRAME.assign(day=DAY), {}, "'day'"),
    "lists": (FRAME.assign(day=[[1]] * T), {}, "'day'"),
    "complex numbers": (FRAME.assign(day=1j), {}, "'day'"),
    "huge numbers": (FRAME.assign(day=AGE * 1e300), {}, "'day'"),
    "labels of dates": (FRAME.assign(outcome=DAY), {}, "'outcome'"),
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
