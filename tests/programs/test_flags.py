from __future__ import annotations

from dataclasses import fields

import pytest

from torchprof_hooks import FlagError
from torchprof_hooks.program import launch as launching
from torchprof_hooks.program.cli import main
from torchprof_hooks.program.flags import (
    Flags,
    as_texts,
    full_name,
    make_flags,
    parse_flags,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", Flags()),
        ("profile=True", Flags(profile=True)),
        ("profile=1,profile_memory=true", Flags(profile=True, profile_memory=True)),
        ("profiling.n_ops=5, profiling.n_apply = 7", Flags(n_ops=5, n_apply=7)),
        ("n_ops=5,", Flags(n_ops=5)),
        ("profiling.destination=a b.txt", Flags(destination="a b.txt")),
        ("profile=False", Flags()),
    ],
)
def test_flags_are_written_as_theanos(text: str, expected: Flags) -> None:
    assert parse_flags(text) == expected


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("profile", "'profile' is no flag: write name=value"),
        ("profil=True", "no flag 'profil'; did you mean profile?"),
        ("profiling.nops=3", "did you mean n_ops"),
        ("zzzz=1", "no flag 'zzzz'; there are profile, profile_memory,"),
        ("profile=maybe", "profile must be True or False, not 'maybe'"),
        ("ranks_report=maybe", "ranks_report must be on or off, not 'maybe'"),
        ("n_ops=0", "profiling.n_ops must be a whole number, 1 or more, not '0'"),
        ("n_ops=2.5", "profiling.n_ops must be a whole number"),
        ("n_ops=-1", "n_ops must be a whole number, 1 or more"),
        ("n_ops=1,profiling.n_ops=2", "'profiling.n_ops' is given twice"),
    ],
)
def test_what_is_wrong_is_said(text: str, complaint: str) -> None:
    with pytest.raises(FlagError) as raised:
        parse_flags(text)
    assert complaint in str(raised.value)
    assert "\n" not in str(raised.value)


def test_flags_as_texts_are_the_same_flags() -> None:
    for flags in (
        Flags(),
        make_flags({"steps": "10", "every": 1000}),
        Flags(save="/a b.json", steps=1, children=True, ranks_report=False),
    ):
        assert make_flags(as_texts(flags)) == flags


def test_every_flag_can_be_written_and_says_what_it_means() -> None:
    for flag in fields(Flags):
        default = getattr(Flags(), flag.name)
        if default is not None:
            assert parse_flags(f"{full_name(flag.name)}={default}") == Flags()
        assert flag.metadata["meaning"]


@pytest.mark.parametrize("option", ["--memory", "--profile-memory"])
def test_memory_has_its_name_in_python_and_that_of_theano(
    option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched: list[dict[str, str]] = []

    def launch(program: object, flags: dict[str, str]) -> int:
        launched.append(flags)
        return 0

    monkeypatch.setattr(launching, "launch", launch)
    assert main([option, "train.py", "--memory", "8GB"]) == 0
    assert launched[0]["profile_memory"] == "True"


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("--memroy train.py", "--memory"),
        ("--profile-mem train.py", "--profile-memory"),
        ("--evry=5 train.py", "--every"),
        ("show --formt=json x.json", "--format"),
        ("compare a b --fale-above 5%", "--fail-above"),
    ],
)
def test_the_nearest_option_is_suggested(
    given: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(given.split())
    assert capsys.readouterr().err.endswith(f"; did you mean {meant}?\n")
