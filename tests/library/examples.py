"""What ops of the library mean, as functions of PyTorch: the oracle of values and gradients."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tests.library.attention_examples import ATTENTION
from tests.library.elementwise_examples import ELEMENTWISE
from tests.library.example import Example
from tests.library.loss_examples import LOSSES
from tests.library.neural_examples import ACTIVATIONS, NORMS, STARTS
from tests.library.recurrent_examples import RECURRENT
from tests.library.window_examples import WINDOWS

PRODUCTS = [
    Example("mm", torch.mm),
    Example("bmm", torch.bmm),
    Example("mv", torch.mv),
    Example("dot", torch.dot),
    Example("outer", torch.outer),
    Example("tril", lambda x: x.tril(1), {"I": [2], "M": 3, "N": 5, "diagonal": 1}),
    Example("triu", lambda x: x.triu(-1), {"I": [2], "M": 4, "N": 3, "diagonal": -1}),
    Example("tril_mask", lambda: torch.ones(3, 5).tril(1).bool(),
            {"rows": 3, "columns": 5, "diagonal": 1}),
    Example("triu_mask", lambda: torch.ones(3, 5).triu(1).bool(),
            {"rows": 3, "columns": 5, "diagonal": 1}),
    Example("linspace", lambda: torch.linspace(-1, 2, 6).double(),
            {"start": -1.0, "stop": 2.0, "steps": 6}),
    Example("linear", F.linear),
    Example("linear", F.linear, {"I": [], "K": 4, "N": 3}),
    Example("bilinear", F.bilinear),
]

PLACES = [
    Example("embedding", F.embedding),
    Example("one_hot", lambda ids: F.one_hot(ids, 4), {"I": [3, 2], "classes": 4}),
    Example("segment_sum", lambda x, ids: x.new_zeros(4, *x.shape[1:]).index_add(0, ids, x),
            {"N": 5, "I": [3], "count": 4}),
    *(Example(f"segment_{ours}", lambda x, ids, theirs=theirs: x.new_zeros(3, 2).index_reduce(
        0, ids, x, theirs, include_self=False), {"N": 5, "I": [2], "count": 3},
              {"ids": [0, 2, 1, 0, 2]})
      for ours, theirs in [("mean", "mean"), ("max", "amax"), ("min", "amin")]),
]

EXAMPLES = [
    *ELEMENTWISE, *ACTIVATIONS, *PRODUCTS, *NORMS, *STARTS, *PLACES, *ATTENTION, *WINDOWS, *LOSSES,
    *RECURRENT,
]
