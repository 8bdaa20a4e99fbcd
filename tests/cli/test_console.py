"""Names reach people as they are in the file."""

from __future__ import annotations

import pytest
from rich.table import Table

from onnxremat.cli.console import Voice
from onnxremat.report.tables import as_text

STEERS = "a\x1b[2J\rb\x9bc\x00"
NAMES = ("[/layer]", "[red]exp", "net:x:0", "[link=a]b[/]")


@pytest.mark.parametrize("name", NAMES)
def test_names_are_neither_markup_nor_emoji(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    table = Table(name, title=name)
    table.add_row(name)
    voice = Voice()
    voice.table(table)
    assert capsys.readouterr().out.count(name) == 3
    assert as_text(table).count(name) == 3
    voice.note(name)
    voice.say(name)
    assert capsys.readouterr().err.count(name) == 2
    voice.err._force_terminal = True
    with voice.working():  # a line that changes
        voice.say(name)
        voice.update(name)
        voice.planning(2.0, 1.0, name)
        assert voice._status is not None
        assert name in str(voice._status.renderable.text)


def test_what_steers_a_terminal_is_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """Plans and machine files may hold any text."""
    table = Table(title=STEERS)
    table.add_row(STEERS, f"{STEERS}\n{STEERS}")
    voice = Voice()
    voice.table(table)
    voice.note(STEERS)
    voice.command(STEERS, [STEERS])
    captured = capsys.readouterr()
    for text in (captured.out, captured.err, as_text(table)):
        assert "a?[2J" in text
        assert not set("\x1b\r\x9b\x00") & set(text)
