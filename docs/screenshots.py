"""Makes the pictures of the documents again: `python docs/screenshots.py [PARTITA] [CHROMIUM]`.

Pages are pictures of headless Chromium. The view of `partita train --live` is what the command writes to a terminal of 84
columns, as an SVG.
"""

import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
from html import escape
from pathlib import Path

IMAGES = Path(__file__).resolve().parent / "images"
COLUMNS, ROWS = 84, 24
GPT = ["gpt", "--mesh", "pp=2,tp=2", "--microbatches", "4"]


def page(partita, chromium, folder):
    """The report of a small GPT on a pipeline of two stages, and the same on the screen of a phone in dark colours."""
    subprocess.run([partita, "report", *GPT, "--measured", "--out", "report.html"], cwd=folder, check=True)
    for name, size, flags in (("report", "1200,1900", []), ("report-phone", "420,1100", ["--force-dark-mode"])):
        picture = [f"--screenshot={IMAGES / name}.png", f"--window-size={size}", "--virtual-time-budget=4000", *flags]
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={folder}/profile"]
        subprocess.run([chromium, *options, *picture, f"file://{folder}/report.html"], check=True, stderr=subprocess.DEVNULL)


def typed(command, folder):
    """What a command writes to a terminal."""
    import fcntl
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    process = subprocess.Popen(command, stdout=theirs, stderr=subprocess.DEVNULL, cwd=folder, env=os.environ | {"TERM": "xterm"})
    os.close(theirs)
    written = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:
            part = b""
        if not part:
            break
        written += part
    process.wait()
    return written.decode()


def view(partita, folder):
    """The view in the middle of a run."""
    options = ["--set", "train.validate_every=40", "--no-verify", "--no-sample", "--steps", "120"]
    written = typed([partita, "train", "gpt", "--mesh", "dp=2,tp=2", "--live", *options], folder)
    drawings = re.split(r"\x1b\[\d+A\r?\x1b\[J", written)
    lines = drawings[len(drawings) * 2 // 3].replace("\r", "").rstrip("\n").split("\n")
    width, height = COLUMNS * 8.4 + 24, len(lines) * 19 + 22
    text = "".join(
        f'<text x="12" y="{26 + 19 * row}" xml:space="preserve">{escape(line)}</text>\n' for row, line in enumerate(lines)
    )
    style = 'font-family="monospace" font-size="14" fill="#e6e8eb"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" {style}>'
    (IMAGES / "live.svg").write_text(f'{head}\n<rect width="100%" height="100%" fill="#15171a"/>\n{text}</svg>\n')


def main():
    partita, chromium = (sys.argv[1:] + ["partita", "chromium"][len(sys.argv) - 1 :])[:2]
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        page(partita, chromium, folder)
        view(partita, folder)


main()
