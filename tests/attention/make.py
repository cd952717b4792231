"""Records attention under sliding windows and document boundaries: `python make.py > recorded.txt`, with PyTorch 2.9 or
newer and Transformers 4.57 or newer.

Each line is `case tensor number number ..`. q is [2, 4, 6, 3], k and v are [2, 2, 6, 3], the gradient of the result is
[2, 4, 6, 3]: element i of tensor number t is `cos(0.37 i + t)`. The scale is 0.7. The masks are those of Transformers, made
by its own mask functions: that of Mistral for a window, and those of packed sequences for the ids of documents below.
"""

import math

import torch
import torch.nn.functional as F
from transformers.masking_utils import (
    and_masks,
    bidirectional_mask_function,
    causal_mask_function,
    packed_sequence_mask_function,
    sliding_window_overlay,
)

DOCUMENTS = torch.tensor([[0, 0, 0, 1, 1, 1], [0, 1, 1, 1, 1, 2]])
CASES = {
    "window": (causal_mask_function, 3, False),
    "documents": (causal_mask_function, None, True),
    "both": (causal_mask_function, 2, True),
    "documents_of_an_encoder": (bidirectional_mask_function, None, True),
}


def tensor(number, shape):
    count = math.prod(shape)
    numbers = [math.cos(0.37 * i + number) for i in range(count)]
    return torch.tensor(numbers, dtype=torch.float64).reshape(shape)


def mask(function, window, documents):
    if window is not None:
        function = and_masks(function, sliding_window_overlay(window))
    if documents:
        function = and_masks(function, packed_sequence_mask_function(DOCUMENTS))
    at = torch.arange(6)
    rows = [[[bool(function(b, 0, i, j)) for j in at] for i in at] for b in range(2)]
    return torch.tensor(rows).reshape(2, 1, 6, 6)


for name, (function, window, documents) in CASES.items():
    q = tensor(0, [2, 4, 6, 3]).requires_grad_()
    k, v = (tensor(number, [2, 2, 6, 3]).requires_grad_() for number in (1, 2))
    seen = mask(function, window, documents)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=0.7, enable_gqa=True)
    out.backward(tensor(3, [2, 4, 6, 3]))
    for what, value in [("out", out), ("dq", q.grad), ("dk", k.grad), ("dv", v.grad)]:
        print(name, what, *(f"{number:.15g}" for number in value.detach().flatten().tolist()))
