"""Work that takes long is shown on a terminal, and leaves nothing there."""

import io
import os
import pty
import subprocess
import sys
import time

from partita._working import working


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_long_work_is_shown_and_erased(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with working("exporting the module", after_s=0.01):
        time.sleep(0.2)
    text = terminal.getvalue()
    assert "partita: exporting the module, 0 s" in text and text.endswith("\r\x1b[2K"), repr(text)


def test_short_work_is_not_shown(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with working("exporting the module"):
        pass
    assert terminal.getvalue() == ""


def test_nothing_is_shown_where_errors_go_to_a_file(monkeypatch):
    file = io.StringIO()
    monkeypatch.setattr(sys, "stderr", file)
    with working("exporting the module", after_s=0.0):
        time.sleep(0.05)
    assert file.getvalue() == ""


def test_work_inside_other_work_has_no_line_of_its_own(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with working("comparing", after_s=0.01), working("exporting", after_s=0.01):
        time.sleep(0.1)
    assert "comparing" in terminal.getvalue() and "exporting" not in terminal.getvalue()


def test_an_error_erases_the_line_and_comes_out(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    try:
        with working("comparing", after_s=0.01):
            time.sleep(0.1)
            raise ValueError("it differs")
    except ValueError as error:
        assert str(error) == "it differs"
    assert terminal.getvalue().endswith("\r\x1b[2K")


def test_a_real_terminal_shows_it():
    parent, child = pty.openpty()
    code = "import time; from partita._working import working\nwith working('comparing', after_s=0.05): time.sleep(0.3)"
    subprocess.run([sys.executable, "-c", code], stderr=child, check=True)
    os.close(child)
    assert b"partita: comparing, 0 s" in os.read(parent, 4096)
    os.close(parent)
