"""The reporter: plain lines where output is redirected, a live bar on a terminal, silence on request."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from distlfm.runtime import reporting
from distlfm.runtime.reporting import Plain, Reporter, Silent, Step, Terminal, reporter_for


class TerminalStream(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that stands still; its time is the one item of the list."""
    now = [100.0]
    monkeypatch.setattr(reporting.time, "monotonic", lambda: now[0])
    return now


def use_all(reporter: Reporter) -> None:
    reporter.say("said [bold] 3")
    reporter.warn("beware")
    reporter.table("title", ("name", "value"), [("a", "1"), ("longer", "[red]")])
    with reporter.task("work", 2) as task:
        task.advance()
        task.tell(Step("search step", 1, 2))
        task.advance(note="loss 0.5")


def test_redirected_output_gets_plain_lines_and_a_terminal_gets_rich_ones() -> None:
    assert type(reporter_for(io.StringIO())) is Plain
    assert type(reporter_for(TerminalStream())) is Terminal


def test_quiet_and_the_librarys_default_say_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    for stream in (io.StringIO(), TerminalStream()):
        use_all(reporter_for(stream, quiet=True))
        assert stream.getvalue() == ""
    use_all(Silent())
    assert capsys.readouterr() == ("", "")


def test_output_follows_a_stream_that_is_replaced_later(capsys: pytest.CaptureFixture[str]) -> None:
    reporter_for().say("here")
    assert capsys.readouterr().out == "here\n"


def test_plain_lines_have_no_escapes_and_keep_brackets(clock: list[float]) -> None:
    stream = io.StringIO()
    use_all(Plain(stream))
    assert stream.getvalue().splitlines()[:6] == [
        "said [bold] 3",
        "warning: beware",
        "title",
        "name    value",
        "a       1",
        "longer  [red]",
    ]
    assert "\x1b" not in stream.getvalue()
    assert "\r" not in stream.getvalue()


def test_plain_progress_comes_at_intervals_with_rate_time_left_and_note(clock: list[float]) -> None:
    stream = io.StringIO()
    with Plain(stream).task("fit", 100) as task:
        for _ in range(40):
            clock[0] += 0.5
            task.advance(note="1 failed")
    assert stream.getvalue().splitlines() == [
        "fit: 20/100, 2/s, 40 s left, 1 failed",
        "fit: 40/100, 2/s, 30 s left, 1 failed",
    ]


def test_progress_goes_on_from_what_was_there_and_its_rate_is_that_of_now(clock: list[float]) -> None:
    stream = io.StringIO()
    with Plain(stream).task("fit", 100, 60) as task:
        clock[0] += 10
        task.advance(20)
    assert stream.getvalue() == "fit: 80/100, 2/s, 10 s left\n"


def test_a_terminal_shows_the_rate_and_what_was_there_before() -> None:
    stream, now = TerminalStream(), [0.0]
    console = Console(file=stream, force_terminal=True, width=100, get_time=lambda: now[0])
    with Terminal(console).task("fit", 100, 60) as task:
        for _ in range(3):
            now[0] += 10
            task.advance(10)
    shown = stream.getvalue()
    assert "90/100" in shown
    assert "1/s" in shown


def test_plain_progress_always_tells_the_end(clock: list[float]) -> None:
    stream = io.StringIO()
    with Plain(stream).task("fit", 3) as task:
        clock[0] += 1.5
        task.advance(3)
    assert stream.getvalue() == "fit: 3/3, 2/s, 0 s left\n"


def test_a_long_unit_is_told_of_in_plain_lines_after_a_while_and_then_now_and_then(clock: list[float]) -> None:
    stream = io.StringIO()
    with Plain(stream).task("fit", 2) as task:
        for second in range(1, 75):
            clock[0] += 1
            task.tell(Step("search step", second, 80))
    assert stream.getvalue().splitlines() == [
        "fit: 0/2 after 10 s, search step 10/80",
        "fit: 0/2 after 40 s, search step 40/80",
        "fit: 0/2 after 70 s, search step 70/80",
    ]


def test_quick_units_have_no_lines_of_their_own_however_many_there_are(clock: list[float]) -> None:
    told, plain = io.StringIO(), io.StringIO()
    for stream in (told, plain):
        with Plain(stream).task("fit", 10) as task:
            for _ in range(10):
                for _ in range(9):
                    clock[0] += 1
                    if stream is told:
                        task.tell(Step("mesh"))
                task.advance()
    assert told.getvalue() == plain.getvalue()


def test_a_terminal_shows_where_a_long_unit_is_under_its_bar(clock: list[float]) -> None:
    stream = TerminalStream()
    with Terminal(Console(file=stream, force_terminal=True, width=60)).task("fit", 2) as task:
        task.advance(note="1 failed")
        clock[0] += 1
        task.tell(Step("too early"))
        clock[0] += 1
        task.tell(Step("search step", 7, 80, (Step("linearisation", 2, 15),)))
        clock[0] += 1
        task.tell(Step("too soon"))
    shown = stream.getvalue()
    assert "1/2" in shown
    assert "linearisation 2/15, search step 7/80" in shown
    assert "too" not in shown


def test_plain_progress_survives_a_clock_that_stands_still(clock: list[float]) -> None:
    stream = io.StringIO()
    with Plain(stream).task("fit", 1) as task:
        task.advance()
    assert stream.getvalue().startswith("fit: 1/1, ")


def test_plain_table_without_rows_shows_its_columns() -> None:
    stream = io.StringIO()
    Plain(stream).table("", ("name", "value"), [])
    assert stream.getvalue() == "name  value\n"


def test_terminal_shows_colour_a_bar_and_literal_brackets() -> None:
    stream = TerminalStream()
    use_all(Terminal(Console(file=stream, force_terminal=True, color_system="standard", width=80)))
    shown = stream.getvalue()
    assert "said [bold] 3" in shown, "what is said is not taken for markup"
    assert "\x1b[33mwarning: beware" in shown
    assert "2/2" in shown
    assert "loss 0.5" in shown


def test_terminal_table_shows_brackets() -> None:
    """The doctor's table holds install lines such as `pip install "distlfm[ray]"`."""
    stream = TerminalStream()
    Terminal(Console(file=stream, force_terminal=True, width=80)).table("of [a]", ("fix [b]",), [("distlfm[ray]",)])
    shown = re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue())
    assert [word for word in ("of [a]", "fix [b]", "distlfm[ray]") if word not in shown] == []


def test_terminal_bar_ends_also_when_the_work_fails() -> None:
    console = Console(file=TerminalStream(), force_terminal=True, width=80)
    with pytest.raises(ZeroDivisionError), Terminal(console).task("work", 2):
        raise ZeroDivisionError
    with Terminal(console).task("again", 1) as task:  # a bar that was left open would refuse a second one
        task.advance()
