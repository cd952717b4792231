"""What the rest of this package needs: errors, the lines of a plan, the timetable; all from `manifest.json` beside it."""

import json
from pathlib import Path

MANIFEST = json.loads((Path(__file__).resolve().parents[1] / "manifest.json").read_text())


class Refused(Exception):
    """What PyTorch cannot run: a code, a message, what was expected, what was found, and what to do."""

    def __init__(self, code, message, **parts):
        lines = [f"error[{code}]: {message}"]
        lines += [f"  {label:>8}: " + text.replace("\n", "\n            ") for label, text in parts.items() if text is not None]
        super().__init__("\n".join(lines))
        self.parts = {"code": code, "message": message} | parts


def refuse(code, message, *, expected=None, found=None, at=None, help=None):
    return Refused(code, message, at=at, expected=expected, found=found, help=help)


def lines(plan):
    """The lines of a plan: pattern, request, origin."""
    return [tuple(line) for line in plan or []]


def spelled(requests):
    """Lines of a plan as a dictionary, one on each line."""
    return "\n".join(f'"{pattern}" = "{request}"' for pattern, all in requests.items() for request in all)


def tasks(name, slices, microbatches):
    """The timetable of the manifest."""
    return MANIFEST["timetable"]
