"""The documents of the repository as pages of a site: a hook of MkDocs, named in mkdocs.yml.

A page has the path of its document, so links between documents are those of the repository, and so are pictures. A link to
what is neither, such as a source file, becomes its text.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ["", "docs", "python", "python/docs", "python/examples", "benches/*", "crates/partita/examples/*", "tests/*"]


def documents():
    """The paths of all documents, from the root of the repository."""
    found = (path for folder in FOLDERS for path in ROOT.glob(f"{folder}/*.md".lstrip("/")))
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


def pictures():
    """The paths of the pictures beside documents and in their folders of images."""
    places = [f"{folder}/*.{end}".lstrip("/") for folder in [*FOLDERS, "docs/images"] for end in ("png", "svg")]
    found = (path for place in places for path in ROOT.glob(place))
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


def on_files(files, config):
    for file in list(files):
        # Those of the theme stay.
        if not file.src_uri.startswith(("css/", "js/", "img/", "search/")):
            files.remove(file)
    for path in [*documents(), *pictures()]:
        files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown, page, config, files):
    folder = posixpath.dirname(page.file.src_uri)

    def link(match):
        text, target = match[1], match[2].partition("#")[0]
        if not target or "://" in target:
            return match[0]
        return match[0] if files.get_file_from_path(posixpath.normpath(posixpath.join(folder, target))) else text

    # Code in backquotes is no link.
    return re.sub(r"(?<!`)\[([^\]\[]*)\]\(([^)\s]+)\)(?!`)", link, markdown)
