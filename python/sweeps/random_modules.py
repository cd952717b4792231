"""Random modules: an entrance, blocks, an ending and what is returned beside; and how each is trained.

What can go wrong lies mostly at the edges, so these are dealt as from decks of cards: each entrance, view, extra output,
pattern of passes and kind of loss comes as often as the others of its kind.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import blocks
import endings
import torch
import torch.nn.functional as F
from case import COTANGENTS, PATTERNS, Arguments, Case
from torch import Tensor, nn
from torch.utils import _pytree as pytree

T = TypeVar("T")
VOCABULARY = 14
CLASSES = 6
ENTRANCES = ("rows", "pair", "nested", "sequence", "masked", "tokens", "typed", "bag", "image", "lookup", "keyword", "scaled")
INSIDE = ("square", "labels", "smooth", "target", "binary", "masked", "next", "auxiliary")
OUTSIDE = ("square", "target", "classes", "masked", "all", "sum")
ROTATED = ("dp=2,tp=2", "pp=2,dp=2", "fsdp=2,tp=2", "pp=2,tp=2", "dp=3", "pp=2,fsdp=2")


class Composed(nn.Module):
    """The whole of a random module behind its entrance."""

    def __init__(self, shape: str, width: int, draw: random.Random, card: Callable[[str, Sequence[Any]], Any]) -> None:
        super().__init__()
        self.width, self.shape = width, shape
        self.parts = nn.ModuleList()
        self.route: list[tuple[str, int]] = []
        for _ in range(draw.randint(1, 3)):
            self._add(draw)
        if shape == "image" and draw.random() < 0.4:
            self._turn(draw.choice(("sequence", "rows")))
            self._add(draw)
        elif shape == "sequence" and draw.random() < 0.4:
            self._turn(draw.choice(("pooled", "last")))
            self._add(draw)
        if draw.random() < 0.25:
            # The same block once more: its parameters get two gradients.
            self.route.append(self.route[-1])
        self.trained_by = card("loss", ("inside", "outside", "cotangents"))
        self.loss = card("inside", INSIDE) if self.trained_by == "inside" else None
        self.head = nn.Linear(width, CLASSES) if self.loss in ("labels", "smooth", "target", "binary") else None
        views = endings.VIEWS | (endings.OF_IMAGES_ALONE if self.shape == "image" else {})
        self.view = card(f"view of {self.shape}", tuple(views))
        self.extras: list[str] = [card("extra", tuple(endings.EXTRAS)) for _ in range(card("extras", (0, 1, 1, 2, 3)))]
        self.way = endings.combined(draw)
        self.views = views
        self._tie(draw)

    def _add(self, draw: random.Random) -> None:
        kinds = {"image": blocks.OF_IMAGES, "sequence": blocks.OF_SEQUENCES}.get(self.shape, blocks.OF_ROWS)
        self.route.append(("block", len(self.parts)))
        self.parts.append(draw.choice(kinds)(self.width, draw))

    def _turn(self, way: str) -> None:
        self.route.append((way, 0))
        self.shape = "sequence" if way == "sequence" else "rows"

    def _tie(self, draw: random.Random) -> None:
        """One weight for two layers; parameters that are not trained; a part that is not used."""
        linear = [part for part in self.modules() if isinstance(part, nn.Linear)]
        square = [part for part in linear if part.weight.shape == (self.width, self.width)]
        if len(square) > 1 and draw.random() < 0.4:
            square[1].weight = square[0].weight
        if draw.random() < 0.25:
            for value in list(self.parameters()):
                value.requires_grad_(draw.random() < 0.6)
        if not any(value.requires_grad for value in self.parameters()):
            for value in self.parameters():
                value.requires_grad_(True)
        if draw.random() < 0.1:
            self.unused = nn.Linear(2, 2)

    def rest(self, h: Tensor, x: Tensor, target: Tensor | None) -> Any:
        middle = h
        for way, place in self.route:
            middle = h
            if way == "block":
                h = self.parts[place](h)
            elif way == "sequence":
                h = h.flatten(2).transpose(1, 2)
            elif way == "rows":
                h = h.mean((2, 3))
            else:
                h = h.mean(1) if way == "pooled" else h[:, -1]
        main = self.views[self.view](h)
        extras = [endings.EXTRAS[extra](h, middle, x) for extra in self.extras]
        return endings.together(self.way, main, extras, None if self.loss is None else self._loss(h, middle, target))

    def _loss(self, h: Tensor, middle: Tensor, target: Tensor | None) -> Tensor:
        if self.loss == "square":
            return h.square().mean()
        if self.loss == "auxiliary":
            return h.square().mean() + 0.1 * middle.abs().mean() + 0.01 * next(self.parameters()).square().sum()
        if self.loss == "masked":
            mask = (torch.arange(h.shape[1]) % 3 != 0).to(h.dtype)
            per = h.reshape(h.shape[0], h.shape[1], -1).square().mean(-1)
            return (per * mask).sum() / (mask.sum() * h.shape[0])
        if self.loss == "next":
            if h.dim() == 2:
                return h.logsumexp(-1).mean()
            scores = h[:, :-1].reshape(-1, h.shape[-1])
            return F.cross_entropy(scores, torch.arange(scores.shape[0]) % scores.shape[1])
        assert self.head is not None and target is not None
        pooled = h if h.dim() == 2 else h.mean((2, 3)) if self.shape == "image" else h.mean(1)
        scores = self.head(pooled)
        if self.loss == "labels":
            return F.cross_entropy(scores, target, ignore_index=0)
        if self.loss == "smooth":
            return F.cross_entropy(scores, target, label_smoothing=0.1)
        if self.loss == "target":
            return F.mse_loss(scores, target)
        return F.binary_cross_entropy_with_logits(scores, target.sigmoid())


class OfFloats(Composed):
    """A linear layer is the entrance."""

    def __init__(self, *rest: Any) -> None:
        super().__init__(*rest)
        self.entrance = nn.Linear(7, self.width)


class Rows(OfFloats):
    def forward(self, x: Tensor, target: Tensor | None = None) -> Any:
        return self.rest(self.entrance(x), x, target)


class Pair(OfFloats):
    def forward(self, x: Tensor, z: Tensor, target: Tensor | None = None) -> Any:
        return self.rest(self.entrance(x) * torch.tanh(self.entrance(z)) + self.entrance(x - z), x, target)


class Nested(OfFloats):
    def forward(self, features: dict[str, Any], target: Tensor | None = None) -> Any:
        x, (z, mask) = features["a"], features["b"]
        return self.rest(self.entrance(x) + self.entrance(z.masked_fill(mask, 0.0)), x, target)


class Keyword(OfFloats):
    def forward(self, x: Tensor, *, scale: Tensor, target: Tensor | None = None) -> Any:
        return self.rest(self.entrance(x * scale.unsqueeze(-1)), x, target)


class Scaled(OfFloats):
    """With numbers that are no tensors."""

    def forward(self, x: Tensor, factor: float, ways: tuple[str, bool], target: Tensor | None = None) -> Any:
        h = self.entrance(x) * factor
        return self.rest(torch.sin(h) if ways[1] else h, x, target)


class Masked(OfFloats):
    def forward(self, x: Tensor, mask: Tensor, target: Tensor | None = None) -> Any:
        h = self.entrance(x).masked_fill(mask.unsqueeze(-1), 0.0)
        return self.rest(h / (~mask).sum(1).clamp(min=1)[:, None, None], x, target)


class Lookup(OfFloats):
    """Rows that are taken out of an input by an index that is an input too."""

    def forward(self, x: Tensor, which: Tensor, target: Tensor | None = None) -> Any:
        taken = x.gather(1, which.unsqueeze(-1).expand(-1, -1, x.shape[-1]))
        return self.rest(self.entrance(taken), x, target)


class OfTokens(Composed):
    """A table is the entrance."""

    def __init__(self, *rest: Any) -> None:
        super().__init__(*rest)
        self.table = nn.Embedding(VOCABULARY, self.width, padding_idx=0 if self.width == 12 else None)
        self.places = nn.Parameter(torch.randn(16, self.width) * 0.1)


class Tokens(OfTokens):
    def forward(self, ids: Tensor, target: Tensor | None = None) -> Any:
        h = self.table(ids) + self.places[: ids.shape[1]]
        return self.rest(h, h.detach(), target)


class Typed(OfTokens):
    """Scores of the next token with the table's own weight."""

    def forward(self, ids: Tensor, kinds: Tensor, target: Tensor | None = None) -> Any:
        h = self.table(ids) + self.table(kinds)
        scores = F.linear(h, self.table.weight)
        return self.rest(h + torch.tanh(scores).mean(-1, keepdim=True), scores, target)


class Bag(OfTokens):
    def forward(self, ids: Tensor, weights: Tensor, target: Tensor | None = None) -> Any:
        h = (self.table(ids) * weights.unsqueeze(-1)).sum(1)
        return self.rest(h, weights, target)


class Image(Composed):
    def __init__(self, *rest: Any) -> None:
        super().__init__(*rest)
        self.entrance = nn.Conv2d(3, self.width, 3, padding=1)

    def forward(self, x: Tensor, target: Tensor | None = None) -> Any:
        return self.rest(self.entrance(x), x, target)


KINDS: dict[str, tuple[type[Composed], str]] = {
    "rows": (Rows, "rows"), "pair": (Pair, "rows"), "nested": (Nested, "rows"), "keyword": (Keyword, "rows"),
    "scaled": (Scaled, "rows"), "sequence": (Rows, "sequence"), "masked": (Masked, "sequence"),
    "lookup": (Lookup, "sequence"), "tokens": (Tokens, "sequence"), "typed": (Typed, "sequence"), "bag": (Bag, "rows"),
    "image": (Image, "image"),
}  # fmt: skip


def _batch(entrance: str, rows: int, length: int, loss: str | None, seed: int) -> Callable[[int], Arguments]:
    def drawn(number: int) -> Arguments:
        make = torch.Generator().manual_seed(seed * 100 + number)

        def real(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=make)

        def whole(most: int, *shape: int) -> Tensor:
            return torch.randint(most, shape, generator=make)

        args: tuple[Any, ...] = ()
        kwargs: dict[str, Any] = {}
        if entrance in ("rows", "pair", "scaled"):
            args = (real(rows, 7),)
            args += {"pair": (real(rows, 7),), "scaled": (0.75, ("a", True))}.get(entrance, ())
        elif entrance == "nested":
            args = ({"a": real(rows, 7), "b": (real(rows, 7), real(rows, 7) > 0.5)},)
        elif entrance == "keyword":
            kwargs = {"x": real(rows, 7), "scale": real(rows)}
        elif entrance in ("sequence", "masked", "lookup"):
            args = (real(rows, length, 7),)
            args += {"masked": (real(rows, length) > 0.8,), "lookup": (whole(length, rows, length - 1),)}.get(entrance, ())
        elif entrance == "image":
            args = (real(rows, 3, 4, 4),)
        else:
            args = (whole(VOCABULARY, rows, length),)
            args += {"typed": (whole(3, rows, length),), "bag": (real(rows, length),)}.get(entrance, ())
        if loss in ("labels", "smooth"):
            labels = whole(CLASSES, rows)
            labels[0] = 1
            kwargs["target"] = labels
        elif loss in ("target", "binary"):
            kwargs["target"] = real(rows, CLASSES)
        if kwargs and args and entrance != "keyword":
            # The target follows by position, so that the module is called as it was loaded.
            args, kwargs = (*args, kwargs["target"]), {}
        return Arguments(args, kwargs)

    return drawn


def _outside(way: str) -> Callable[[Any, Arguments], Tensor]:
    def loss(outputs: Any, _: Arguments) -> Tensor:
        leaves = [leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
        first = leaves[0]
        if way == "square":
            return first.square().mean()
        if way == "sum":
            return first.sum()
        if way == "target":
            return F.mse_loss(first, torch.linspace(-1, 1, first.numel(), dtype=first.dtype).view(first.shape))
        if way == "classes":
            scores = first.reshape(-1, first.shape[-1])
            return F.cross_entropy(scores, torch.arange(scores.shape[0]) % scores.shape[1])
        if way == "masked":
            mask = torch.arange(first.shape[0]) % 2 == 0
            return (first.reshape(first.shape[0], -1).tanh().mean(1) * mask).sum() / mask.sum()
        return torch.stack([leaf.square().mean() for leaf in leaves if leaf.numel()]).sum()

    return loss


def _card(seed: int, index: int) -> Callable[[str, Sequence[Any]], Any]:
    """Deals from a shuffled deck for each kind of choice: the module's number says which card."""
    used: dict[str, int] = {}

    def dealt(kind: str, cards: Sequence[Any]) -> Any:
        place = index + 101 * used.get(kind, 0)
        used[kind] = used.get(kind, 0) + 1
        deck = list(cards)
        random.Random(f"{seed} {kind} {place // len(deck)}").shuffle(deck)
        return deck[place % len(deck)]

    return dealt


def case_of(seed: int, index: int) -> Case:
    """The random module of this number."""
    draw, card = random.Random(f"module {seed} {index}"), _card(seed, index)
    entrance = card("entrance", ENTRANCES)
    kind, shape = KINDS[entrance]
    torch.manual_seed(draw.randrange(2**31))
    module = kind(shape, draw.choice((8, 12)), draw, card)
    normed = any(isinstance(part, nn.BatchNorm1d) for part in module.modules())
    rows = 6 if normed else card("rows", (4, 2, 6, 4, 3))
    own = module.trained_by
    outside = card("outside", OUTSIDE)
    objective = None
    if own == "outside":
        objective = _outside(outside)
    elif own == "inside":
        way = module.way
        objective = lambda outputs, _: endings.loss_of(way, outputs)  # noqa: E731
    module.train(draw.random() < 0.85)
    told = [entrance, module.view, own if own == "cotangents" else f"{own} {module.loss or outside}"]
    return Case(
        name=f"random-{index}",
        about=", ".join([*told, *module.extras]),
        module=module,
        batch=_batch(entrance, rows, draw.choice((4, 5, 6)), module.loss, seed * 1000 + index),
        objective=objective,
        pattern=card("pattern", PATTERNS),
        cotangents=(card("cotangents", COTANGENTS), card("cotangents", COTANGENTS), card("cotangents", COTANGENTS)),
        optimizer=card("optimizer", ("sgd", "adamw")),
        rate=0.02,
        needs_input_gradients=draw.random() < 0.3,
        seed=seed,
        meshes=("dp=1", "dp=2", "tp=2", "fsdp=2", "pp=2", card("mesh", ROTATED)),
    )
