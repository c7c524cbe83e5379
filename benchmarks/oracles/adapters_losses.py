"""Adapters of losses and distances. Classes are the last axis with us, the second in torch."""

from __future__ import annotations

from typing import Any

from torch.nn import functional

from benchmarks.oracles.contract import Operand, Unsupported, adapter, oracle


def classes_last(x: Operand) -> str:
    return f"{x}" if x.ndim < 3 else f"last({x}, 1)"


@adapter("nn.functional.cross_entropy")
def _cross_entropy(x: Operand, target: Operand, weight: Any = None, size_average: Any = None,
                   ignore_index: int = -100, reduce: Any = None, reduction: str = "mean",
                   label_smoothing: float = 0.0) -> str:
    how, scores = f'reduction="{reduction}"', classes_last(x)
    if target.is_float:
        return (f"soft_cross_entropy({scores}, {classes_last(target)}, {weight}, {how}, "
                f"smoothing={float(label_smoothing)})")
    loss = (f"cross_entropy({scores}, {target}, {weight}, {ignore_index}, {how}, "
            f"smoothing={float(label_smoothing)})")
    return f"{x.dtype}({loss})" if x.dtype in ("f16", "bf16") else loss  # ours is in f32


@adapter("nn.functional.nll_loss")
def _nll(x: Operand, target: Operand, weight: Any = None, size_average: Any = None,
         ignore_index: int = -100, reduce: Any = None, reduction: str = "mean") -> str:
    return f'nll({classes_last(x)}, {target}, {weight}, {ignore_index}, reduction="{reduction}")'


@adapter("nn.functional.binary_cross_entropy")
def _bce(x: Operand, y: Operand, weight: Any = None, size_average: Any = None, reduce: Any = None,
         reduction: str = "mean") -> str:
    return f'bce({x}, {y}, {weight}, reduction="{reduction}")'


@adapter("nn.functional.binary_cross_entropy_with_logits")
def _bce_logits(x: Operand, y: Operand, weight: Any = None, size_average: Any = None,
                reduce: Any = None, reduction: str = "mean", pos_weight: Any = None) -> str:
    return f'bce_with_logits({x}, {y}, {weight}, {pos_weight}, reduction="{reduction}")'


for _name, _ours in {"mse_loss": "mse", "l1_loss": "l1"}.items():
    def _plain(x: Operand, y: Operand, size_average: Any = None, reduce: Any = None,
               reduction: str = "mean", function: str = _ours, weight: Any = None) -> str:
        if weight is not None:
            loss = f'{function}({x}, {y}, reduction="none") * {weight}'
            end = {"none": loss, "sum": f"sum({loss})",
                   "mean": f"sum({loss}) / sum(expand({weight}, ({loss}).shape))"}
            return end[reduction]
        return f'{function}({x}, {y}, reduction="{reduction}")'

    adapter(f"nn.functional.{_name}")(_plain)


@adapter("nn.functional.smooth_l1_loss")
def _smooth_l1(x: Operand, y: Operand, size_average: Any = None, reduce: Any = None,
               reduction: str = "mean", beta: float = 1.0) -> str:
    return f'smooth_l1({x}, {y}, {float(beta)}, reduction="{reduction}")'


@adapter("nn.functional.huber_loss")
def _huber(x: Operand, y: Operand, reduction: str = "mean", delta: float = 1.0,
           weight: Any = None) -> str:
    if weight is not None:
        raise Unsupported("huber takes no weights")
    return f'huber({x}, {y}, {float(delta)}, reduction="{reduction}")'


@adapter("nn.functional.kl_div")
def _kl(x: Operand, y: Operand, size_average: Any = None, reduce: Any = None,
        reduction: str = "mean", log_target: bool = False) -> str:
    return f'kl_div({x}, {y}, reduction="{reduction}", log_target={log_target})'


@adapter("nn.functional.poisson_nll_loss")
def _poisson(x: Operand, y: Operand, log_input: bool = True, full: bool = False,
             size_average: Any = None, eps: float = 1e-8, reduce: Any = None,
             reduction: str = "mean") -> str:
    return f'poisson_nll({x}, {y}, {log_input}, {full}, {eps}, reduction="{reduction}")'


@adapter("nn.functional.gaussian_nll_loss")
def _gaussian(x: Operand, y: Operand, var: Any, full: bool = False, eps: float = 1e-6,
              reduction: str = "mean") -> str:
    if not isinstance(var, Operand):
        raise Unsupported("the variance is a tensor")
    return f'gaussian_nll({x}, {y}, {var}, {full}, {eps}, reduction="{reduction}")'


@adapter("nn.functional.margin_ranking_loss")
def _ranking(x: Operand, y: Operand, sign: Operand, margin: float = 0.0, size_average: Any = None,
             reduce: Any = None, reduction: str = "mean") -> str:
    return f'margin_ranking({x}, {y}, {sign}, {float(margin)}, reduction="{reduction}")'


@adapter("nn.functional.hinge_embedding_loss")
def _hinge(x: Operand, sign: Operand, margin: float = 1.0, size_average: Any = None,
           reduce: Any = None, reduction: str = "mean") -> str:
    return f'hinge_embedding({x}, {sign}, {float(margin)}, reduction="{reduction}")'


@adapter("nn.functional.soft_margin_loss")
def _soft_margin(x: Operand, sign: Operand, size_average: Any = None, reduce: Any = None,
                 reduction: str = "mean") -> str:
    return f'soft_margin({x}, {sign}, reduction="{reduction}")'


@adapter("nn.functional.cosine_similarity")
def _cosine(x: Operand, y: Operand, dim: int = 1, eps: float = 1e-8) -> str:
    if x.ndim == y.ndim == 0:
        return f"cosine_similarity({x}[None], {y}[None], {dim}, {eps})"
    return f"cosine_similarity({x}, {y}, {dim}, {eps})"


@adapter("nn.functional.cosine_embedding_loss")
def _cosine_embedding(x: Operand, y: Operand, sign: Operand, margin: float = 0.0,
                      size_average: Any = None, reduce: Any = None, reduction: str = "mean"
                      ) -> str:
    return f'cosine_embedding({x}, {y}, {sign}, {float(margin)}, reduction="{reduction}")'


@adapter("nn.functional.pairwise_distance")
def _pairwise(x: Operand, y: Operand, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
              ) -> str:
    made = f"pairwise_distance({x}, {y}, {float(p)}, {eps})"
    return f"unsqueeze({made}, -1)" if keepdim else made


@adapter("nn.functional.triplet_margin_loss")
def _triplet(anchor: Operand, positive: Operand, negative: Operand, margin: float = 1.0,
             p: float = 2, eps: float = 1e-6, swap: bool = False, size_average: Any = None,
             reduce: Any = None, reduction: str = "mean") -> str:
    return (f"triplet_margin({anchor}, {positive}, {negative}, {float(margin)}, {float(p)}, "
            f'{eps}, {swap}, reduction="{reduction}")')


@adapter("cdist")
def _cdist(x: Operand, y: Operand, p: float = 2.0, compute_mode: Any = None) -> str:
    return f"cdist({x}, {y}, {float(p)})"


# The gradient of torch's is that of a softmax before it: so both have one, which changes no value.

oracle("nn.functional.ctc_loss")(
    lambda x, *args, **kwargs: functional.ctc_loss(x.log_softmax(-1), *args, **kwargs))


@adapter("nn.functional.ctc_loss")
def _ctc(x: Operand, target: Operand, lengths: Any, counts: Any, blank: int = 0,
         reduction: str = "mean", zero_infinity: bool = False) -> str:
    if x.ndim < 3 or target.ndim < 2:
        raise Unsupported("ctc takes a batch, with a row of labels for each sample")
    known = "".join(
        f"listed{n} = {list(given)}\nknown{n}[b < {len(given)}] = listed{n}[b]\n"
        for n, given in enumerate((lengths, counts)) if not isinstance(given, Operand))
    own, goal = (given if isinstance(given, Operand) else f"known{n}"
                 for n, given in enumerate((lengths, counts)))
    return (f"{known}return ctc(log_softmax({x}), {target}, {own}, {goal}, {blank}, "
            f'"{reduction}", {zero_infinity})')
