"""Makes the pictures of the documents again: `python docs/screenshots.py [--check] [PARTITA] [CHROMIUM]`.

Pages are pictures of headless Chromium. The view of `partita train --live` is what the command writes to a terminal of 84
columns, as an SVG. The notebook is `python/examples/notebook.ipynb`, run by Jupyter's nbconvert where it is installed.

With `--check` the pictures that depend on no clock are made in another folder and compared with the kept ones: in squares of
16 pixels their mean brightness must be near, so that another font or another edge of a letter is no difference.
"""

import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import tempfile
import zlib
from html import escape
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
COLUMNS, ROWS = 84, 24
GPT = ["gpt", "--mesh", "pp=2,tp=2", "--microbatches", "4"]
LARGE = ["llama3-405b", "--mesh", "pp=16,dp=128,tp=8", "--batch", "2048", "--microbatches", "16", "--dtype", "bf16"]
LARGE += ["--sequence-parallel", "--vocab-parallel", "--set", "plan.layers.*=checkpoint"]
CLUSTER = ["--cluster", "h100-80g:2048x8"]
# Name, what is reported, size of the window, flags of the browser. The measured one depends on the clock.
PAGES = [
    ("report", [*GPT, "--measured"], "1200,1900", []),
    ("report-phone", [*GPT, "--cluster", "a100-80g:1x4"], "420,1100", ["--force-dark-mode"]),
    ("report-large", [*LARGE, *CLUSTER], "1200,1700", []),
]
# The side of a square in pixels, and by how much squares may differ in the mean, of 255.
SIDE, NEAR = 16, 6.0


def picture(chromium, page, name, size, flags, images, folder):
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={folder}/profile"]
    options += [f"--screenshot={images / name}.png", f"--window-size={size}", "--virtual-time-budget=4000", *flags]
    subprocess.run([chromium, *options, f"file://{page}"], check=True, stderr=subprocess.DEVNULL)


def reports(partita, chromium, folder, images, pages):
    """Reports: of a small GPT on a pipeline of two stages, on the screen of a phone in dark colours, of 16,384 ranks."""
    for name, arguments, size, flags in pages:
        page = Path(folder) / f"{name}.html"
        subprocess.run([*partita, "report", *arguments, "--out", page], cwd=folder, check=True)
        picture(chromium, page, name, size, flags, images, folder)


def notebook(chromium, folder, images):
    """The notebook of the examples, after it ran."""
    if not (find_spec("nbconvert") and find_spec("ipykernel")):
        print("the notebook is left as it is: nbconvert and ipykernel are not installed")
        return
    path = ROOT / "python" / "examples" / "notebook.ipynb"
    command = [sys.executable, "-m", "nbconvert", "--to", "html", "--execute", "--output-dir", folder, path]
    subprocess.run(command, check=True)
    picture(chromium, Path(folder) / "notebook.html", "notebook", "1200,1140", [], images, folder)


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
    written = typed([*partita, "train", "gpt", "--mesh", "dp=2,tp=2", "--live", *options], folder)
    drawings = re.split(r"\x1b\[\d+A\r?\x1b\[J", written)
    lines = drawings[len(drawings) * 2 // 3].replace("\r", "").rstrip("\n").split("\n")
    width, height = COLUMNS * 8.4 + 24, len(lines) * 19 + 22
    text = "".join(
        f'<text x="12" y="{26 + 19 * row}" xml:space="preserve">{escape(line)}</text>\n' for row, line in enumerate(lines)
    )
    style = 'font-family="monospace" font-size="14" fill="#e6e8eb"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" {style}>'
    (IMAGES / "live.svg").write_text(f'{head}\n<rect width="100%" height="100%" fill="#15171a"/>\n{text}</svg>\n')


def pixels(path):
    """Width, height, bytes of a pixel, and the rows of a PNG of eight bits without interlace (W3C, "PNG", 2003, section 9)."""
    data = path.read_bytes()
    at, packed, header = 8, b"", b""
    while at < len(data):
        size, kind = struct.unpack(">I4s", data[at : at + 8])
        body = data[at + 8 : at + 8 + size]
        header, packed = (body if kind == b"IHDR" else header), packed + (body if kind == b"IDAT" else b"")
        at += size + 12
    width, height, depth, colour, _, _, interlace = struct.unpack(">IIBBBBB", header)
    assert (depth, interlace) == (8, 0) and colour in (2, 6), f"{path} has another form"
    each = 3 if colour == 2 else 4
    raw, stride, before, rows = zlib.decompress(packed), width * each, bytearray(width * each), []
    for y in range(height):
        kind, row = raw[y * (stride + 1)], bytearray(raw[y * (stride + 1) + 1 : (y + 1) * (stride + 1)])
        for x in range(stride):
            left, up, corner = (row[x - each], before[x], before[x - each]) if x >= each else (0, before[x], 0)
            if kind == 4:
                estimate = left + up - corner
                nearest = min((left, up, corner), key=lambda value: abs(estimate - value))
            else:
                nearest = (0, left, up, (left + up) // 2)[kind]
            row[x] = (row[x] + nearest) & 255
        rows.append(row)
        before = row
    return width, height, each, rows


def squares(path):
    """The size of a picture, and the mean brightness of its squares."""
    width, height, each, rows = pixels(path)
    means = []
    for y in range(0, height - SIDE + 1, SIDE):
        for x in range(0, width - SIDE + 1, SIDE):
            parts = (row[x * each : (x + SIDE) * each] for row in rows[y : y + SIDE])
            means.append(sum(map(sum, parts)) / (SIDE * SIDE * each))
    return (width, height), means


def difference(one, other):
    """By how much the squares of two pictures differ in the mean, of 255; as much as can be if the sizes differ."""
    (size, means), (other_size, other_means) = squares(one), squares(other)
    if size != other_size:
        return 255.0
    return sum(abs(a - b) for a, b in zip(means, other_means, strict=True)) / len(means)


def main():
    arguments = [argument for argument in sys.argv[1:] if argument != "--check"]
    partita, chromium = (arguments + ["partita", "chromium"][len(arguments) :])[:2]
    partita = shlex.split(partita)
    with tempfile.TemporaryDirectory() as folder:
        if "--check" in sys.argv:
            timeless = [page for page in PAGES if "--measured" not in page[1]]
            reports(partita, chromium, folder, Path(folder), timeless)
            far = {name: difference(IMAGES / f"{name}.png", Path(folder) / f"{name}.png") for name, *_ in timeless}
            print("differences from the kept pictures, of 255:", {name: round(value, 2) for name, value in far.items()})
            sys.exit(any(value > NEAR for value in far.values()))
        IMAGES.mkdir(exist_ok=True)
        reports(partita, chromium, folder, IMAGES, PAGES)
        view(partita, folder)
        notebook(chromium, folder, IMAGES)


if __name__ == "__main__":
    main()
