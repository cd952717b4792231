"""What a step is given: batches in the form of the module's arguments, and labels that are no class."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402

import partita  # noqa: E402
from partita import PartitaError, Trainer  # noqa: E402


class Towers(nn.Module):
    """A batch of dictionaries within a dictionary."""

    def __init__(self):
        super().__init__()
        self.user, self.item = nn.Embedding(10, 4), nn.Embedding(20, 4)

    def forward(self, batch):
        users = self.user(batch["user"]["ids"]).mean(1)
        return F.mse_loss((users * self.item(batch["item"])).sum(-1), batch["score"])


def test_a_batch_has_the_form_of_the_arguments():
    torch.manual_seed(0)
    module = Towers()
    batch = {"user": {"ids": torch.randint(0, 10, (4, 3))}, "item": torch.randint(0, 20, (4,)), "score": torch.randn(4)}
    losses = []
    for form in (
        batch,
        (batch,),
        {"batch": batch},
        (batch["user"]["ids"], batch["item"], batch["score"]),
        # Dictionaries have no order that counts.
        {"score": batch["score"], "item": batch["item"], "user": batch["user"]},
    ):
        trainer = Trainer(partita.load(module, (batch,)), None, "dp=2", partita.optim.SGD(lr=0.1))
        losses.append([trainer.step(form), trainer.step(form)])
    assert losses[0][0] == pytest.approx(module(batch).item(), rel=1e-5)
    assert losses[0][1] < losses[0][0]
    assert all(other == losses[0] for other in losses)


class Classes(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.linear, self.options = nn.Linear(8, 5), options

    def forward(self, x, y):
        return F.cross_entropy(self.linear(x), y, **self.options)


@pytest.mark.parametrize("options, ignored", [({}, -100), ({"ignore_index": 7}, 7)])
def test_a_label_that_is_no_class_is_refused_before_the_step(options, ignored):
    torch.manual_seed(0)
    x, y = torch.randn(16, 8), torch.randint(0, 5, (16,))
    trainer = Trainer(partita.load(Classes(**options), (x, y)), None, "dp=2", partita.optim.SGD(lr=0.1))
    first = trainer.step((x, y))
    for wrong in (5, -1):
        with pytest.raises(PartitaError, match=f"label {wrong}, which is no class") as raised:
            trainer.step((x, torch.where(torch.arange(16) == 3, wrong, y)))
        assert raised.value.code == "E423"
    assert trainer.steps == 1
    second = trainer.step((x, torch.where(torch.arange(16) == 3, ignored, y)))
    assert second < first and trainer.steps == 2
