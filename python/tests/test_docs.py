"""The documents: links lead somewhere, the site builds, and programs in them run and print what stands below them.

A block of Python under ``<!-- run -->`` is run; the blocks of a page are one program. A block of text that follows it is
what it prints; a line ``..`` stands for any lines, and ``...`` for any text.
"""

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import partita

ROOT = Path(__file__).resolve().parents[2]
SKIPPED = {"target", "runs", "node_modules"}
DOCUMENTS = sorted(
    path
    for path in ROOT.rglob("*.md")
    if not any(part in SKIPPED or part.startswith(".") for part in path.relative_to(ROOT).parts)
)
# Pages whose program runs once in each of so many processes; what the first one prints counts.
LAUNCHED = {"torch": 4}
PAGES = [ROOT / "python" / "README.md", *sorted((ROOT / "python" / "docs").glob("*.md"))]


def prose(path):
    """The lines of a document without blocks of code."""
    inside = False
    for line in path.read_text().splitlines():
        if line.lstrip().startswith("```"):
            inside = not inside
        elif not inside:
            yield line


def anchors(path):
    """The anchors of the headings of a document, as GitHub and MkDocs make them."""
    found = set()
    for line in prose(path):
        if re.match(r"#+ ", line):
            title = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", line.lstrip("# ").strip()).lower()
            found.add(re.sub(r"[^\w\- ]", "", title).replace(" ", "-"))
    return found


def links(path):
    for line in prose(path):
        for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", line)):
            if "://" not in target and not target.startswith("mailto:"):
                yield target


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_to_files_and_headings(path):
    for target in links(path):
        file, _, anchor = target.partition("#")
        other = path if not file else path.parent / file
        assert other.exists(), target
        assert not anchor or anchor in anchors(other), target


def test_the_site_has_every_document(tmp_path):
    pytest.importorskip("mkdocs", reason="MkDocs is not installed")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--config-file", ROOT / "mkdocs.yml", "--site-dir", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for path in PAGES:
        page = path.relative_to(ROOT).with_suffix("")
        page = page.parent if page.name == "README" else page
        assert (tmp_path / page / "index.html").exists(), page
    assert (tmp_path / "search" / "search_index.json").exists()


def programs(path):
    """The blocks of a page that are run, each with the text that stands below it, if any."""
    block = r"<!-- run -->\n```python\n(.*?)```\n(?:\n```text\n(.*?)```\n)?"
    return re.findall(block, path.read_text(), re.DOTALL)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_programs_on_pages_run_and_print_what_they_say(path, tmp_path):
    found = programs(path)
    if path.stem == "calls":
        assert not found
        return
    assert found, "every page has a program"
    for module in {"alpa": ["jax", "flax", "optax"], "iree": []}.get(path.stem, ["torch"]):
        pytest.importorskip(module, reason=f"{module} is not installed")
    end = "-- end of block --"
    script = tmp_path / "page.py"
    script.write_text("".join(f"{code}\nprint({end!r}, flush=True)\n" for code, _ in found))
    environment = os.environ | {"PYTHONPATH": str(Path(partita.__file__).resolve().parents[1]), "JAX_PLATFORMS": "cpu"}
    count = LAUNCHED.get(path.stem)
    launcher = [] if count is None else ["-m", "partita.launch", "-n", str(count)]
    done = subprocess.run([sys.executable, *launcher, script], capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines(keepends=True)
    if count is not None:
        lines = [line.removeprefix("[rank 0] ") for line in lines if line.startswith("[rank 0] ")]
    printed = "".join(lines).split(end + "\n")
    for (_, expected), output in zip(found, printed, strict=False):
        expected = re.sub(r"^\.\.$", "...", expected, flags=re.MULTILINE)
        same = doctest.OutputChecker().check_output(expected, output, doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
        assert not expected or same, output
