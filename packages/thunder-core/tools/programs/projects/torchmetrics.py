# SPDX-License-Identifier: Apache-2.0
"""TorchMetrics: functional metrics of the documentation, the first of each domain, and modules in a loop."""

from __future__ import annotations

from typing import Any

import torch

from programs.program import Project

PROJECT = Project("torchmetrics", rank=1265, requires=["torchmetrics==1.9.*"])


def _functional(name: str, inputs: Any, **options: Any) -> None:
    def build() -> Any:
        import importlib

        module, _, function = name.rpartition(".")
        metric = getattr(importlib.import_module(f"torchmetrics.functional.{module}".rstrip(".")), function)
        return (lambda *args: metric(*args, **options)), inputs

    PROJECT.add(name, f"documentation, functional.{name}", build)


def _classes() -> Any:
    return torch.randn(10, 5).softmax(dim=-1), torch.randint(5, (10,))


def _binary() -> Any:
    return torch.rand(20), torch.randint(2, (20,))


def _numbers() -> Any:
    return torch.randn(12, requires_grad=True), torch.randn(12)


def _audio() -> Any:
    return torch.randn(2, 400, requires_grad=True), torch.randn(2, 400)


def _images() -> Any:
    return torch.rand(2, 3, 32, 32, requires_grad=True), torch.rand(2, 3, 32, 32)


for _name in ("accuracy", "auroc", "average_precision", "cohen_kappa", "confusion_matrix", "f1_score"):
    _functional(f"classification.{_name}", _classes, task="multiclass", num_classes=5)
_functional("classification.binary_accuracy", _binary)
_functional("classification.binary_calibration_error", _binary)
for _name in ("concordance_corrcoef", "cosine_similarity", "explained_variance", "kendall_rank_corrcoef",
              "mean_absolute_error", "mean_squared_error", "pearson_corrcoef", "r2_score",
              "spearman_corrcoef"):  # fmt: skip
    _functional(f"regression.{_name}", _numbers if _name != "cosine_similarity" else lambda: (
        torch.randn(4, 6, requires_grad=True), torch.randn(4, 6)))  # fmt: skip
for _name in ("scale_invariant_signal_distortion_ratio", "scale_invariant_signal_noise_ratio", "signal_noise_ratio"):
    _functional(f"audio.{_name}", _audio)
for _name in ("peak_signal_noise_ratio", "structural_similarity_index_measure", "total_variation",
              "universal_image_quality_index"):  # fmt: skip
    _functional(f"image.{_name}", _images if _name != "total_variation" else lambda: _images()[:1],
                **({"data_range": 1.0} if _name in ("peak_signal_noise_ratio", "structural_similarity_index_measure")
                   else {}))  # fmt: skip
_functional("pairwise.pairwise_cosine_similarity", lambda: (torch.randn(4, 6, requires_grad=True), torch.randn(3, 6)))
_functional("retrieval.retrieval_normalized_dcg", lambda: (torch.rand(8), torch.randint(2, (8,))))
_functional("clustering.mutual_info_score", lambda: (torch.randint(4, (20,)), torch.randint(4, (20,))))


@PROJECT.program("module metric", "README, module metrics")
def _module() -> Any:
    from torchmetrics.classification import MulticlassAccuracy

    metric = MulticlassAccuracy(num_classes=5)
    return metric, _classes


@PROJECT.program("collection", "documentation, MetricCollection")
def _collection() -> Any:
    from torchmetrics import MetricCollection
    from torchmetrics.classification import MulticlassAccuracy, MulticlassPrecision, MulticlassRecall

    metrics = MetricCollection([MulticlassAccuracy(5), MulticlassPrecision(5), MulticlassRecall(5)])

    def update(preds: Any, target: Any) -> Any:
        metrics.update(preds, target)
        return metrics.compute()

    return update, _classes, metrics


@PROJECT.program("own metric", "README, implementing your own module metric")
def _own() -> Any:
    from torchmetrics import Metric

    class MyAccuracy(Metric):
        def __init__(self) -> None:
            super().__init__()
            self.add_state("correct", default=torch.tensor(0), dist_reduce_fx="sum")
            self.add_state("total", default=torch.tensor(0), dist_reduce_fx="sum")

        def update(self, preds: Any, target: Any) -> None:
            preds = preds.argmax(dim=-1)
            if preds.shape != target.shape:
                raise ValueError("preds and target must have the same shape")
            self.correct += torch.sum(preds == target)
            self.total += target.numel()

        def compute(self) -> Any:
            return self.correct.float() / self.total

    return MyAccuracy(), _classes
