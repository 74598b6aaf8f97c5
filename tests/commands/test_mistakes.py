"""A mistake on a command line; `tests/messages/commands.py` lists more."""

from fedvg_jax import sim


def test_a_mistake_prints_one_line_and_exits_with_two(capfd):
    assert sim.main(["--alpha", "0"]) == 2
    output, errors = capfd.readouterr()
    assert errors.startswith("error: ") and errors.count("\n") == 1 and not output
