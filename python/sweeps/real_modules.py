"""The real modules of a sweep: what each is given, how its loss is computed, and in what order its passes run."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import own_models
import torch
import torch.nn.functional as F
from case import PATTERNS, Arguments, Case, Objective
from torch import Tensor, nn

MESHES = ("dp=1", "dp=2", "tp=2", "fsdp=2", "pp=2")
_HUGGING_FACE = (
    "gpt2", "llama", "qwen2", "qwen3-moe", "mixtral", "bert", "distilbert", "roberta", "albert", "t5", "bart", "vit", "clip",
    "whisper", "mamba", "opt", "gpt-neox", "gemma2",
)  # fmt: skip


class Drawn:
    """Random tensors of a batch."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def real(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator)

    def whole(self, most: int, *shape: int) -> Tensor:
        return torch.randint(most, shape, generator=self.generator)

    def above(self, least: int, most: int, *shape: int) -> Tensor:
        return torch.randint(least, most, shape, generator=self.generator)


def _tokens(kind: str, draw: Drawn) -> dict[str, Any]:
    """What a model of transformers is given."""
    rows, length = 4, 8
    ids = draw.above(3, 40, rows, length)
    mask = torch.ones_like(ids)
    if kind == "image":
        return {"pixel_values": draw.real(rows, 3, 8, 8), "labels": draw.whole(5, rows)}
    if kind == "sound":
        return {"input_features": draw.real(rows, 8, 16), "labels": ids}
    if kind == "both":
        ids[:, -1] = 2
        return {"input_ids": ids, "pixel_values": draw.real(rows, 3, 8, 8), "attention_mask": mask, "return_loss": True}
    if kind == "bare":
        return {"input_ids": ids}
    mask[0, -2:] = 0
    if kind == "class":
        return {"input_ids": ids, "attention_mask": mask, "labels": draw.whole(3, rows)}
    labels = ids.clone()
    if kind == "masked":
        labels[draw.real(rows, length) > 0.5] = -100
        labels[:, 0] = ids[:, 0]
    elif kind == "classes":
        labels = draw.whole(5, rows, length)
    else:
        labels[mask == 0] = -100
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def _loss_of(outputs: Any, _: Arguments) -> Tensor:
    loss = outputs["loss"] if isinstance(outputs, dict) else outputs.loss
    assert isinstance(loss, Tensor)
    return loss


def _next(outputs: Any, arguments: Arguments) -> Tensor:
    """The loss of the next token, computed outside of the model."""
    ids = arguments.kwargs["input_ids"]
    return F.cross_entropy(outputs.logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def _hugging_face(name: str) -> tuple[nn.Module, Callable[[Drawn], Arguments], Objective]:
    import hugging_face

    make, kind = hugging_face.MODELS[name]
    return make(), lambda draw: Arguments((), _tokens(kind, draw)), _next if kind == "bare" else _loss_of


Own = tuple[Callable[[], nn.Module], Callable[[Drawn], tuple[Any, ...]], Objective | None]


def _square(outputs: Any, _: Arguments) -> Tensor:
    found: Tensor = outputs.square().mean()
    return found


def _scores(outputs: Any, _: Arguments) -> Tensor:
    return F.cross_entropy(outputs, torch.arange(outputs.shape[0]) % outputs.shape[1])


def _language(outputs: Any, arguments: Arguments) -> Tensor:
    return F.cross_entropy(outputs[0], arguments.args[0][:, 1:].reshape(-1))


def _noise(outputs: Any, arguments: Arguments) -> Tensor:
    found = outputs["sample"] if isinstance(outputs, dict) else outputs
    return F.mse_loss(found, arguments.args[0].roll(1, 0))


def _bound(outputs: Any, arguments: Arguments) -> Tensor:
    again, mean, spread = outputs
    likeness = F.mse_loss(again, arguments.args[0])
    found: Tensor = likeness - 0.05 * (1 + spread - mean.square() - spread.exp()).mean()
    return found


def _first(outputs: Any, _: Arguments) -> Tensor:
    found: Tensor = outputs[0]
    return found


def _binary(outputs: Any, _: Arguments) -> Tensor:
    return F.binary_cross_entropy_with_logits(outputs, torch.ones_like(outputs))


def _padded(draw: Drawn) -> tuple[Any, ...]:
    ids = draw.whole(20, 4, 6)
    return ids, torch.arange(6) >= draw.above(2, 7, 4, 1)


_OWN: dict[str, Own] = {
    "resnet": (own_models.ResNet, lambda draw: (draw.real(4, 3, 8, 8), draw.whole(10, 4)), _first),
    "convnext": (own_models.ConvNext, lambda draw: (draw.real(4, 3, 8, 8),), _scores),
    "unet": (own_models.UNet, lambda draw: (draw.real(4, 3, 8, 8), draw.whole(1000, 4)), _noise),
    "diffusion-transformer": (own_models.Transformer, lambda draw: (draw.real(4, 3, 8, 8), draw.whole(5, 4)), _noise),
    "lstm": (lambda: own_models.Recurrent("lstm"), lambda draw: (draw.whole(20, 4, 6),), _language),
    "gru": (lambda: own_models.Recurrent("gru"), lambda draw: (draw.whole(20, 4, 6),), _language),
    "mixture": (own_models.Mixture, lambda draw: (draw.whole(20, 4, 6),), _loss_of),
    "variational": (own_models.Variational, lambda draw: (draw.real(4, 24), draw.real(4, 6)), _bound),
    "discriminator": (own_models.Discriminator, lambda draw: (draw.real(4, 3, 8, 8),), _binary),
    "features": (
        own_models.Features,
        lambda draw: (
            draw.real(4, 5),
            {"a": draw.whole(10, 4, 3), "b": draw.whole(6, 4, 1), "c": draw.whole(4, 4, 2)},
        ),
        _square,
    ),
    "encoder": (own_models.Encoder, _padded, _scores),
    "mixer": (own_models.Mixer, lambda draw: (draw.real(4, 3, 8, 8),), None),
}

MODULES = (*(f"hf-{name}" for name in _HUGGING_FACE), *_OWN)


def case_of(seed: int, name: str) -> Case:
    """The real module of this name. The seed says its weights, its batches and the order of its passes."""
    draw = random.Random(f"real {seed} {name}")
    torch.manual_seed(draw.randrange(2**31))
    order = random.Random(f"order {seed}")
    patterns = list(PATTERNS)
    order.shuffle(patterns)
    place = MODULES.index(name)
    first = draw.randrange(2**31)
    objective: Objective | None
    if name.startswith("hf-"):
        module, batch, objective = _hugging_face(name.removeprefix("hf-"))
    else:
        make, arguments, own = _OWN[name]
        module, objective = make(), own
        batch = lambda drawn: Arguments(arguments(drawn))  # noqa: E731
    case = Case(
        name=name,
        about="",
        module=module.train(),
        batch=lambda number: batch(Drawn(first + number)),
        objective=objective,
        pattern=patterns[place % len(patterns)],
        cotangents=("random", draw.choice(("zero", "large", "other", "random")), "random"),
        optimizer=draw.choice(("sgd", "adamw")),
        rate=0.02,
        needs_input_gradients=name == "discriminator",
        seed=seed,
        meshes=MESHES,
    )
    if draw.random() < 0.2:
        for parameter in list(module.parameters())[:2]:
            parameter.requires_grad_(False)
    loss = "cotangents" if objective is None else "loss inside" if objective in (_loss_of, _first) else "loss outside"
    return replace(case, about=f"{loss}, {case.pattern}, {case.optimizer}")
