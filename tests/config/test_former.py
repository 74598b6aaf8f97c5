"""Former names of settings: accepted on the command line, in files, from Python, in run folders and in sweeps."""

import json

import pytest
from support.files import one_line, usage_error

from fedvg_jax import commands, config
from fedvg_jax.config import SETTINGS, Config, command_line, former
from fedvg_jax.config.departures import departs, departures
from fedvg_jax.paper import fidelity
from fedvg_jax.runs.record.folder import config_from_json
from fedvg_jax.study.sweep_arguments import read_command_line
from fedvg_jax.study.sweep_points import Sweep, make_points, parse_axes, read_file

OTHER = {"norm": "group", "split": "global", "select": "held_out", "pretrained": "w.safetensors", "pool": "host"}
OTHER |= {"memories": "device", "fedvg.exponent": 2.0, "fedvg.temperature": 0.5, "fedvg.mix": 0.25}
OTHER |= {"fedvg.fit_rate": 0.5, "send.kind": "topk", "robust.rule": "clipped_mean"}
OTHER |= {"attack.kind": "noise"}
"""Former name of `RENAMED` -> a value that is not the default."""


def changed(made):
    default = config.flatten(Config())
    return {name: value for name, value in config.flatten(config.check(made)).items() if value != default[name]}


def nested(name, value):
    group, _, last = name.rpartition(".")
    return {group: {last: value}} if group else {last: value}


def test_no_former_name_is_a_setting_and_every_new_one_is():
    assert not set(former.NAMES) & SETTINGS.keys()
    assert {former.name_of(name) for name in (*former.RENAMED, *former.SWITCHED)} <= SETTINGS.keys()
    assert {name for *_, name in former.SWITCHED.values()} == fidelity.SWITCHES.keys()


@pytest.mark.parametrize("name", OTHER)
def test_renamed_setting_is_the_same_by_both_names(name):
    value, beside = OTHER[name], {"model": "resnet18"} if name == "norm" else {}
    by_new_name = changed(config.apply(Config(**beside), {former.RENAMED[name]: value}, "test"))
    assert changed(Config(**beside, **nested(name, value))) == by_new_name
    assert changed(config.apply(Config(**beside), {name: value}, "test")) == by_new_name
    parsed = config.command_line.parse([f"--{name.replace('_', '-')}", str(value)], "sim")
    assert changed(config.apply(Config(**beside), parsed, "test")) == by_new_name


@pytest.mark.parametrize("name", former.SWITCHED)
def test_switched_setting_adds_its_departure_or_takes_it_out(name):
    published, other, departure = former.SWITCHED[name]
    for start in ("", "official"):
        for value, is_published in ((published, True), (other, False)):
            made = config.apply(Config(departures=start), {name: value}, "test")
            assert departs(made, departure) == is_published
            assert departures(made.departures) ^ departures(start) <= {departure}
            parsed = config.command_line.parse([f"--{name.replace('_', '-')}", value], "sim")
            assert config.apply(Config(departures=start), parsed, "test") == made
            fidelity_of = {"": None, "official": "official"}[start]
            from_python = Config(fidelity=fidelity_of, partition="dirichlet", **nested(name, value))
            assert from_python.departures == made.departures


BEHIND = {
    "partition_file": ("file", "rows.npz"),
    "shards_per_client": ("shards", 3),
    "classes_per_client": ("classes", 4),
    "candidates": ("power_of_choice", 15),
    "send.fraction": ("topk", 0.5),
    "send.levels": ("qsgd", 8),
    "robust.trim": ("trimmed_mean", 0.2),
    "robust.clip_norm": ("clipped_mean", 2.0),
    "robust.num_bad": ("krum", 2),
    "robust.num_kept": ("krum", 3),
    "attack.scale": ("sign_flip", 2.0),
    "corrupt.strength": ("label_flip", 0.5),
    "lr_decay": ("exponential", 0.5),
    "validation.clients": ("clients", 0.5),
}
"""Former name of a value -> the name behind which it stands, and one that is not the default."""


@pytest.mark.parametrize("name", BEHIND)
def test_former_name_of_a_value_puts_it_behind_the_name_that_has_it(name):
    setting, (kind, value) = former.JOINED[name].setting, BEHIND[name]
    before, uniform = "1," if name == "robust.num_kept" else "", {"weighting": "uniform"}
    expected = changed(Config(**nested(setting, f"{kind}:{before}{value}"), **uniform))
    old = {"send": "send.kind", "robust": "robust.rule", "attack": "attack.kind"}.get(setting, setting)
    assert changed(config.apply(Config(**uniform), {name: value, old: kind}, "test")) == expected
    assert changed(config.apply(Config(**nested(setting, kind), **uniform), {name: value}, "test")) == expected
    group, _, last = name.rpartition(".")
    settings = {group: {old.rpartition(".")[2]: kind, last: value}} if group else {setting: kind, name: value}
    assert changed(Config(**settings, **uniform)) == expected
    parsed = config.command_line.parse([f"--{name.replace('_', '-')}", str(value), f"--{setting}={kind}"], "sim")
    assert changed(config.apply(Config(**uniform), parsed, "test")) == expected
    flag, decider = (f"--{text.replace('_', '-')}" for text in (name, setting))
    others = ["--validation.source=npz", "--validation.data-dir=x"] if name == "validation.clients" else []
    with one_line(f"{flag} is not used by {decider}|partition_file is for partition file|clients must be left out"):
        commands.parse([flag, str(value), *others])


@pytest.mark.parametrize("flags", ["--lora-rank 8 --lora ^fc", "--lora ^fc --lora-rank=8"])
def test_former_names_of_parts_of_a_setting_join_it(flags):
    parsed = config.command_line.parse(flags.split(), "sim")
    assert config.apply(Config(lora=4), parsed, "test").lora == "8:^fc"
    assert Config(lora_rank=4).lora == 4
    assert config.apply(Config(), {"lora_rank": 0, "lora": "^fc"}, "config.json") == Config()
    named = {"image_column": "", "label_column": "fine", "group_column": "writer"}
    assert config.apply(Config(), named, "config.json").columns == "group=writer,label=fine"
    assert commands.parse(["--dataset=hf:set", "--group-column=writer"]).columns == "group=writer"
    with usage_error("--group-column is not used by --dataset digits"):
        commands.parse(["--group-column=writer"])


@pytest.mark.parametrize(
    "settings",
    [
        *({former.JOINED[name].setting: kind, name: value} for name, (kind, value) in BEHIND.items()),
        {"robust": "krum", "robust.num_bad": 2, "robust.num_kept": 3},
        {"local": "^fc", "local_first": 0.5},
        {"model": "resnet18", "stem": "cifar"},
        {"record": "confusion", "keep_clients": True},
        {"image_column": "img", "label_column": "fine"},
        {"lora": "^fc", "lora_rank": 2},
        {"scaffold.memory": "lost", "scaffold.steps": "single"},
        {"pool": "host"},
    ],
    ids=str,
)
def test_former_names_given_again_change_nothing(settings):
    """As where a run is resumed by its first command."""
    once = config.apply(Config(), settings, "test")
    again = {name: value for name, value in settings.items() if name in former.NAMES}
    assert once != Config() and config.apply(once, again, "test") == once


@pytest.mark.parametrize(
    ("flags", "same"),
    [
        ("--method fedrep --local-first 0.25", "--method fedrep --local 0.25:^classifier/"),
        ("--method fedrep --local-first 0", "--method fedper"),
        ("--local ^fc --local-first 0.5", "--local 0.5:^fc"),
        ("--model resnet18 --stem cifar", "--model resnet18_cifar"),
        ("--local ^fc --local-first 0.00001", "--local 1e-05:^fc"),
        ("--keep-clients --no-keep-clients", ""),
        ("--keep-clients --record confusion", "--record confusion,client_models"),
        ("--record confusion --keep-clients", "--record confusion,client_models"),
    ],
)
def test_settings_that_another_one_took_up_are_the_same_by_both_names(flags, same):
    assert commands.parse(flags.split()) == commands.parse(same.split())
    with usage_error("--local-first is not used without --local"):
        commands.parse(["--local-first=0.5"])
    assert Config(local="^fc", local_first=0.5, keep_clients=True) == Config(local="0.5:^fc", record="client_models")
    defaults = {"local_first": 0.0, "stem": "imagenet", "keep_clients": False, "validation.clients": 1.0}
    assert config.apply(Config(model="resnet18"), defaults, "config.json") == Config(model="resnet18")


WRONG = [(name, wrong) for name in (*BEHIND, "lora_rank", "local_first") for wrong in (-1, "abc")]
WRONG += [
    ("send.fraction", True),
    ("send.levels", 1.5),
    ("stem", "7x7"),
    ("keep_clients", "yes"),
    ("pool", "disk"),
    ("scaffold.memory", "x"),
]


@pytest.mark.parametrize(("name", "value"), [pair for pair in WRONG if pair[0] != "partition_file"], ids=str)
def test_wrong_value_of_a_former_name_is_refused_by_that_name(name, value):
    with one_line(f"^Config: {name} must be .*; got {str(value)!r}"):
        Config(**nested(name, value))
    with one_line(f"^command line: {name} must be"):
        commands.parse([f"--{name.replace('_', '-')}={value}"])


@pytest.mark.parametrize(
    ("former_name", "value", "setting", "text"),
    [
        *((name, value, former.JOINED[name].setting, f"{kind}:9") for name, (kind, value) in BEHIND.items()),
        ("pretrained", "a", "init", "b"),
        ("pool", "host", "placement", "device"),
        ("lora_rank", 8, "lora", "4:^fc"),
        ("stem", "imagenet", "model", "resnet18_cifar"),
    ],
)
def test_former_name_beside_another_value_by_the_name_is_refused(former_name, value, setting, text):
    second = "1,9" if former_name == "robust.num_kept" else ""
    words = [f"--{setting}={text.replace('9', second or '9')}", f"--{former_name.replace('_', '-')}={value}"]
    with one_line(f"{former_name} is a former name of .*{setting}; got both"):
        commands.parse(words)
    with one_line("got both"):
        config.apply(Config(), command_line.parse(words, "sim"), "test")


CARRIED = [
    *(({n: value}, former.JOINED[n].setting, kind) for n, (kind, value) in BEHIND.items() if n != "partition_file"),
    ({"local_first": 0.5}, "local", "^fc"),
    ({"lora_rank": 8}, "lora", "^fc"),
    ({"stem": "cifar"}, "model", "resnet18"),
    ({"keep_clients": True}, "record", "confusion"),
    ({"attack.clients": 0.5}, "attack", "noise"),
]


@pytest.mark.parametrize(("shared", "setting", "text"), CARRIED, ids=str)
def test_former_part_in_a_file_joins_a_setting_of_flags_and_axes(tmp_path, shared, setting, text):
    (name, value), path = *shared.items(), tmp_path / "file.toml"
    path.write_text(f"{name} = {json.dumps(value)}\nweighting = 'uniform'\n")
    expected = config.check(config.apply(Config(weighting="uniform"), {**shared, setting: text}, "test"))
    made = commands.parse([f"--config={path}", f"--{setting}={text}"])
    assert config.flatten(made) | {"cache_dir": None} == config.flatten(expected)
    path.write_text(f"{path.read_text()}[axes]\n'{setting}' = ['{text}']\n")
    (point,) = read_command_line(["--config", str(path)]).points.points
    assert getattr(point.config, setting.partition(".")[0]) == getattr(expected, setting.partition(".")[0])
    whole = SETTINGS[setting].get(expected) if name != "attack.clients" else text
    assert former.carried(shared, {setting: whole}) == {setting: whole} or name in ("keep_clients", "attack.clients")


def test_clients_of_an_attack_are_the_corrupt_clients():
    made = config.apply(
        Config(), {"attack.kind": "noise", "attack.clients": 0.5, "corrupt.clients": 0.3}, "config.json"
    )
    assert made.corrupt.clients == 0.5
    assert config.apply(Config(), {"attack.kind": "none", "attack.clients": 0.5}, "config.json") == Config()
    with usage_error("got both"):
        both = {"attack.kind": "noise", "attack.clients": 0.5, "corrupt.kind": "rotate", "corrupt.clients": 0.3}
        config.apply(Config(), both, "config.json")


def test_departures_that_a_run_cannot_have_are_refused_as_flags():
    with usage_error("--scaffold.memory is not used by --algorithm fedavg"):
        commands.parse(["--scaffold.memory", "lost"])
    with usage_error("--departures scaffold-memory is not used by --algorithm fedavg"):
        commands.parse(["--departures", "cohorts,scaffold-memory"])
    assert commands.parse(["--fidelity", "official"]).departures == "official"
    with usage_error("unknown departures 'scafold-memory'"):
        commands.parse(["--departures", "scafold-memory"])


@pytest.mark.parametrize("name", former.REMOVED)
def test_removed_setting_is_refused_unless_it_has_its_default(name):
    default = former.REMOVED[name]
    assert config.apply(Config(), {name: default}, "config.json") == Config()
    with usage_error(f"config.json: {name} is no setting any more; leave it out"):
        config.apply(Config(), {name: not default if isinstance(default, bool) else 0.5}, "config.json")
    with usage_error("is no setting any more"):
        commands.parse([f"--{name.replace('_', '-')}"])


def test_settings_of_a_run_folder_of_former_names_are_read():
    """Those that differ from the defaults, as an earlier version wrote them, beside the others at their defaults."""
    written = json.loads(json.dumps(config.to_json(Config()) | {"init": None}))
    del written["departures"], written["norm_layers"], written["placement"], written["send"]
    written |= {"send": {"kind": "topk", "fraction": 0.05, "levels": 4}, "partition": "classes", "partition_file": None}
    written |= {"shards_per_client": 3, "classes_per_client": 2, "candidates": 0}
    written |= {"norm": "group", "pool": "host", "memories": "auto", "pretrained": None, "server_stats": "averaged"}
    written |= {"robust": {"rule": "krum", "trim": 0.1, "num_bad": 2, "num_kept": 1, "clip_norm": 10.0}}
    written |= {"attack": {"kind": "noise", "scale": 2.0}, "lr_schedule": "exponential", "lr_decay": 0.9}
    written["corrupt"] |= {"strength": 1.0}
    written |= {"lora_rank": 2, "image_column": "", "config": "configs/mine.toml", "dry_run": False}
    written["scaffold"] |= {"steps": "single", "memory": "kept"}
    written["validation"] |= {"copies": "none", "classes": "paper", "fraction": 1.0, "pixel_noise": 0.0}
    made = config_from_json(written, "config.json")
    assert (made.norm_layers, made.placement, made.init) == ("group", "host", None)
    assert made.departures == "scaffold-steps,no-external-copies"
    assert (made.robust, made.attack, made.lr_schedule) == ("krum:2", "noise:2.0", "exponential:0.9")
    assert (made.lora, made.columns) == (2, "")
    assert (made.send, made.partition, made.selection) == ("topk:0.05", "classes", "uniform")


def test_former_names_are_axes_of_a_sweep(tmp_path):
    path = tmp_path / "sweep.toml"
    path.write_text('algorithm = "scaffold"\n[axes]\n"scaffold.memory" = ["kept", "lost"]\npool = ["host"]\n')
    file = read_file(path)
    points = make_points(Sweep(file.axes, start=Config(algorithm="scaffold"))).points
    assert [point.config.departures for point in points] == ["", "scaffold-memory"]
    assert {point.config.placement for point in points} == {"host"}
    assert [axis.names for axis in parse_axes({"fedvg.mix": [0.5]})] == [("generalised.mix",)]
