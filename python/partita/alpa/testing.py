"""Comparisons of trees of arrays, as ``alpa.testing``."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

__all__ = ["assert_allclose"]


def assert_allclose(x: Any, y: Any, rtol: float = 1e-4, atol: float = 1e-4) -> None:
    """Compares two trees leaf by leaf: arrays of any kind, train states, dictionaries, lists, numbers.

    Raises ``AssertionError`` that names the first leaf with a difference beyond ``atol + rtol * abs(y)``, or leaves that
    one tree has and the other has not.
    """
    (found, _), (expected, _) = map(jax.tree_util.tree_flatten_with_path, (x, y))
    named = [{jax.tree_util.keystr(path): leaf for path, leaf in leaves} for leaves in (found, expected)]
    if list(named[0]) != list(named[1]):
        differing = sorted(set(named[0]) ^ set(named[1])) or list(named[0])
        raise AssertionError(f"the trees have other leaves: {', '.join(differing[:5])}")
    for name, leaf in named[0].items():
        other = named[1][name]
        np.testing.assert_allclose(np.asarray(leaf), np.asarray(other), rtol=rtol, atol=atol, err_msg=name)
