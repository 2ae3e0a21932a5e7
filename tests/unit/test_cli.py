"""The command line: exit codes, help, what is said where, and how a failure is told."""

from __future__ import annotations

import json
import logging
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest

from distlfm.cli import main
from distlfm.errors import MissingExtra, WorkError
from distlfm.version import __version__
from tests.support.cli_verbs import verbs

PROJECT = Path(__file__).resolve().parents[2]
COMMAND = Path(sys.executable).parent / "distlfm"
GOOD = "time,gene,value\n0,a,1\n1,a,2\n2,a,3\n"
BROKEN = "time,gene,value\n0,a,1\n1,a,two\n2,a,3\n"


def run(*arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
    """The real command, its output redirected."""
    return subprocess.run(
        [str(COMMAND), *arguments], capture_output=True, text=True, timeout=120, env={**os.environ, **changes}
    )


def run_on_terminal(*arguments: str) -> tuple[int, str]:
    """The real command on a pseudo-terminal: its exit code and all it showed."""
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"}
    for name in ("NO_COLOR", "FORCE_COLOR", "CI"):
        environment.pop(name, None)
    ours, theirs = pty.openpty()
    child = subprocess.Popen([str(COMMAND), *arguments], stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    shown = b""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if select.select([ours], [], [], 1.0)[0]:
            try:
                part = os.read(ours, 65536)
            except OSError:  # Linux' way of saying that the other end is closed
                break
            if not part:
                break
            shown += part
    os.close(ours)
    return child.wait(timeout=10), shown.decode()


# ---- version, help, completion ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_version() -> None:
    done = run("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"distlfm {__version__}\n", "")


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_shows_examples_and_every_verb(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([flag]) == 0
    shown = capsys.readouterr().out
    assert "Examples" in shown
    assert "distlfm fit configs/" in shown
    assert [path for path in verbs() if not re.search(rf"^\W*{path[0]}\b", shown, re.MULTILINE)] == []


@pytest.mark.parametrize("command", verbs(), ids=" ".join)
def test_help_of_every_verb_shows_an_example(command: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert re.search(r"Examples?:", shown)
    assert f"distlfm {' '.join(command)}" in shown.split("Example", 1)[1]


@pytest.mark.parametrize("command", [(), *verbs()], ids=" ".join)
def test_configs_that_a_help_names_are_shipped(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main([*command, "--help"]) == 0
    named = re.findall(r"configs/[\w/]+\.yaml", capsys.readouterr().out)
    assert [name for name in named if not (PROJECT / name).exists()] == []


@pytest.mark.parametrize("arguments", [[], ["data"], ["config"]])
def test_call_without_a_verb_shows_the_help_and_is_wrong_usage(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert "Usage: distlfm" in capsys.readouterr().out


@pytest.mark.slow
def test_completion_script_of_bash() -> None:
    # With something after it, bash stays: the shell is told by the parent process.
    show = ["bash", "-c", f"'{COMMAND}' --show-completion; true"]
    script = subprocess.run(show, capture_output=True, text=True, timeout=60).stdout
    assert "complete -o default -F _distlfm_completion distlfm" in script
    subprocess.run(["bash", "-n"], input=script, text=True, check=True, timeout=10)


@pytest.mark.parametrize(
    ("words", "expected"),
    [("distlfm dat", {"data"}), ("distlfm data ", {"ls", "check"}), ("distlfm doctor --qu", {"--quick"})],
)
def test_completion_answers(
    words: str, expected: set[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_DISTLFM_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split(" ")) - 1))
    with pytest.raises(SystemExit):
        main([])
    assert set(capsys.readouterr().out.split()) == expected


# ---- exit codes and sentences ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("arguments", "meant"), [(["fitt"], "fit"), (["data", "chek"], "check")])
def test_a_misspelt_verb_is_answered_once(arguments: list[str], meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr().err.count(f"Did you mean '{meant}'?") == 1


@pytest.mark.parametrize("verb", [["fit"], ["config", "show"]])
@pytest.mark.parametrize("name", ["two.csv", "two.CSV.gz", "two.npz"])
def test_data_in_place_of_a_config_are_told_where_they_belong(
    verb: list[str], name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_bytes(b"time,value\n0,1\n")
    assert main([*verb, name]) == 2
    told = capsys.readouterr().err
    assert f"distlfm: {name} holds data, and a config is expected here. Give data with --data" in told
    assert "data.path" in told


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["fti"], "fti"),
        (["doctor", "--quik"], "--quik"),
        (["data", "check"], "PATH"),
        (["data", "check", "no_such_file.csv"], "There is no such file"),
        (["config", "show", "no_such_file.yaml"], "There is no config file"),
        (["config", "schema", "fti"], "There is no verb 'fti'"),
        (["simulate", "transcripton", "--out", "never.npz"], "Did you mean 'transcription'"),
        (["simulate", "transcription", "--out", "never.npz", "pionts=3"], "Did you mean 'points'"),
        (["simulate", "transcription", "--out", "never.npz", "--instances", "0"], "--instances"),
    ],
)
def test_wrong_usage_is_exit_code_2_with_a_sentence_on_stderr(
    arguments: list[str], word: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    shown = capsys.readouterr()
    assert word in shown.err
    assert "Traceback" not in shown.err
    assert shown.out == ""
    assert list(tmp_path.iterdir()) == []


def test_unknown_key_of_a_config_names_the_nearest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "fit.yaml"
    path.write_text("verb: fit\nmechanism: {kind: transcription}\nrun: {sed: 1}\n")
    for arguments in (["config", "show", str(path)], ["fit", str(path)]):
        assert main(arguments) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"distlfm: {path}: Unknown key 'run.sed'. Did you mean 'run.seed'")


def test_failed_work_is_exit_code_1_with_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise WorkError("All 3 fits failed.", "Loosen the priors.")

    monkeypatch.setattr("distlfm.data.catalog.list_datasets", fail)
    assert main(["data", "ls"]) == 1
    assert capsys.readouterr().err == "distlfm: All 3 fits failed. Loosen the priors.\n"


def test_missing_extra_is_exit_code_1_with_the_install_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise MissingExtra("ray is not installed.", 'Install it with: pip install "distlfm[ray]"')

    monkeypatch.setattr("distlfm.data.catalog.list_datasets", fail)
    assert main(["data", "ls"]) == 1
    assert 'pip install "distlfm[ray]"' in capsys.readouterr().err


def test_unexpected_failure_is_one_sentence_and_debug_shows_the_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise ZeroDivisionError("nothing to divide by")

    monkeypatch.setattr("distlfm.data.catalog.list_datasets", fail)
    assert main(["data", "ls"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("distlfm: Unexpected ZeroDivisionError: nothing to divide by.")
    assert "--debug" in line

    assert main(["--debug", "data", "ls"]) == 1
    shown = capsys.readouterr().err
    assert "Traceback (most recent call last)" in shown
    assert shown.splitlines()[-1] == line


def test_global_options_are_understood_behind_the_verb_too(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["data", "check", "none", "--debug"], ["data", "--debug", "check", "none"]):
        assert main(arguments) == 2
        assert "Traceback" in capsys.readouterr().err
    assert main(["data", "check", "--", "--debug"]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_debug_of_one_call_does_not_stay(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, has_traceback in ((["--debug", "data", "check", "none"], True), (["data", "check", "none"], False)):
        assert main(arguments) == 2
        assert ("Traceback" in capsys.readouterr().err) is has_traceback


def test_interruption_is_exit_code_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("distlfm.data.catalog.list_datasets", interrupt)
    assert main(["data", "ls"]) == 130
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.slow
def test_ctrl_c_ends_a_running_command_without_a_traceback() -> None:
    child = subprocess.Popen([str(COMMAND), "doctor"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not any(task.read_text() for task in Path(f"/proc/{child.pid}/task").glob("*/children")):
        assert time.monotonic() < deadline, "the doctor started no probe"
        time.sleep(0.05)
    child.send_signal(signal.SIGINT)
    _, errors = child.communicate(timeout=30)
    assert child.returncode == 130
    assert "Traceback" not in errors


@pytest.mark.slow
def test_reader_that_went_away_is_no_crash() -> None:
    """As in `distlfm data ls | head -1`."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([str(COMMAND), "data", "ls"], stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(writer)
    assert done.returncode != 0
    assert done.stderr == ""


# ---- data check ------------------------------------------------------------------------------------------------------


def test_data_check_of_good_data_is_exit_code_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "good.csv"
    path.write_text(GOOD)
    assert main(["data", "check", str(path)]) == 0
    assert re.search(r"^instances\s+1 usable", capsys.readouterr().out, re.MULTILINE)


def test_data_check_of_a_broken_file_is_exit_code_1_with_the_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "broken.csv"
    path.write_text(BROKEN)
    assert main(["data", "check", str(path)]) == 1
    shown = capsys.readouterr()
    assert "row 3" in shown.out + shown.err
    assert "'two'" in shown.out + shown.err
    assert "column 'value'" in shown.out + shown.err


def test_data_check_for_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "broken.csv"
    path.write_text(BROKEN)
    assert main(["data", "check", "--json", str(path)]) == 1
    assert json.loads(capsys.readouterr().out)["set_aside"]


# ---- how much is said, and in which form -----------------------------------------------------------------------------


@pytest.mark.slow
def test_redirected_output_is_plain_lines() -> None:
    done = run("data", "ls", FORCE_COLOR="")
    assert done.returncode == 0
    assert done.stdout.splitlines()[1].split()[:2] == ["name", "available"]
    assert not re.search(r"[\x1b\r┃│━]", done.stdout)


@pytest.mark.slow
def test_terminal_gets_a_drawn_table() -> None:
    code, shown = run_on_terminal("data", "ls")
    assert code == 0
    assert "┃" in shown
    assert "\x1b[" in shown


def test_quiet_says_nothing_but_keeps_the_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "broken.csv"
    path.write_text(BROKEN)
    assert main(["-q", "data", "check", str(path)]) == 1
    assert capsys.readouterr().out == ""
    assert main(["-q", "data", "check", str(tmp_path / "none.csv")]) == 2
    assert "There is no such file" in capsys.readouterr().err, "what went wrong is said all the same"


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([], ["WARNING"]),
        (["-v"], ["WARNING", "INFO"]),
        (["-vv"], ["WARNING", "INFO", "DEBUG"]),
        (["-v", "-v"], ["WARNING", "INFO", "DEBUG"]),
        (["-vvvv"], ["WARNING", "INFO", "DEBUG"]),
        (["-q"], []),
    ],
)
def test_verbosity_sets_which_log_lines_are_seen(
    flags: list[str],
    expected: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def talk() -> list[dict[str, str]]:
        for level in (logging.WARNING, logging.INFO, logging.DEBUG):
            logging.getLogger("distlfm.somewhere").log(level, "heard")
        return []

    monkeypatch.setattr("distlfm.data.catalog.list_datasets", talk)
    assert main([*flags, "data", "ls", "--json"]) == 0
    shown = capsys.readouterr()
    assert re.findall(r"^(\w+) distlfm\.somewhere: heard$", shown.err, re.MULTILINE) == expected
    assert shown.out == "[]\n", "log lines do not mix with results"


def test_warnings_of_libraries_are_log_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def warn() -> list[dict[str, str]]:
        warnings.warn("old habits", FutureWarning, stacklevel=1)
        return []

    monkeypatch.setattr("distlfm.data.catalog.list_datasets", warn)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert main(["data", "ls", "--json"]) == 0
    assert capsys.readouterr().err.startswith("WARNING py.warnings:")


def test_doctor_fails_on_a_broken_part_and_not_on_a_missing_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from distlfm.doctor.checks import Check

    for status, code in (("ok", 0), ("missing", 0), ("broken", 1)):
        found = [Check("part", status, "seen", "mend it")]  # type: ignore[arg-type]
        monkeypatch.setattr("distlfm.doctor.checks.run_checks", lambda *_, found=found, **__: found)
        assert main(["doctor"]) == code
        assert status in capsys.readouterr().out


# ---- the main job ----------------------------------------------------------------------------------------------------


def test_simulate_writes_what_data_check_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "toy.npz"
    assert main(["simulate", "transcription", "--instances", "3", "--out", str(path), "points=7"]) == 0
    capsys.readouterr()
    assert main(["data", "check", "--json", str(path)]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["num_instances"], shown["num_points"]) == (3, 21)


def test_data_check_reads_what_a_config_names_and_settings_as_a_config_calls_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("wide.csv").write_text("when,a [mM],b\n0,1,2\n1,NA,4\n2,3,5\n")
    wide = "data: {path: wide.csv, columns: {time: when, values: ['a [mM]', b]}}\n"
    Path("fit.yaml").write_text(f"verb: fit\nmechanism: {{kind: transcription}}\n{wide}")
    values = 'values=["a [mM]", b]'
    for call in (
        ["fit.yaml"],
        ["wide.csv", "time=when", values],
        ["wide.csv", "columns.time=when", f"data.columns.{values}"],
    ):
        assert main(["data", "check", "--json", *call]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert (shown["outputs"], shown["num_missing"], shown["num_cells"]) == (["a [mM]", "b"], 1, 6)
    assert main(["data", "check", "wide.csv", "time=when", "values=[a [mM], b]"]) == 2
    assert "[a [mM], b] is not valid YAML. Quote names with brackets" in capsys.readouterr().err
    Path("none.yaml").write_text("verb: fit\n")
    assert main(["data", "check", "none.yaml"]) == 2
    assert "none.yaml names no file of data of its own" in capsys.readouterr().err


def test_simulate_keeps_away_from_the_config_of_the_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = tmp_path / "toy.yaml"
    mine.write_text("verb: fit\n")
    assert main(["simulate", "transcription", "--instances", "1", "--out", str(tmp_path / "toy.npz")]) == 0
    assert mine.read_text() == "verb: fit\n"
    assert "verb: simulate" in (tmp_path / "toy.simulate.yaml").read_text()
    assert capsys.readouterr().out.startswith("1 instance of transcription with its truth is in ")


def test_config_show_fills_in_defaults_and_is_a_config_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, again = tmp_path / "short.yaml", tmp_path / "long.yaml"
    path.write_text("verb: fit\nmechanism: {kind: transcription}\n")
    assert main(["config", "show", str(path), "run.seed=5"]) == 0
    again.write_text(capsys.readouterr().out)
    assert "seed: 5" in again.read_text()
    assert main(["config", "show", str(again)]) == 0
    assert capsys.readouterr().out == again.read_text()


@pytest.mark.parametrize("verb", ["query", "evaluate", "serve", "programme"])
def test_config_schema_knows_every_verb_that_takes_keys(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "schema", verb]) == 0
    assert json.loads(capsys.readouterr().out)["properties"]["verb"]["const"] == verb


def test_config_schema_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "schema", "fit"]) == 0
    assert "mechanism" in json.loads(capsys.readouterr().out)["properties"]
