# SPDX-License-Identifier: Apache-2.0
"""The torch language (`import thunder.torch as ltorch`): torch's operations, with one file per family."""

from typing import TYPE_CHECKING

from thunder.core.devices import to_torch_device
from thunder.core.dtypes import to_dtype, to_torch_dtype
from thunder.core.families import import_families
from thunder.core.proxies import TensorProxy as TensorLike  # the type of tensor arguments in signatures
from thunder.torch.activations import *  # noqa: F403
from thunder.torch.activations_smooth import *  # noqa: F403
from thunder.torch.attention import *  # noqa: F403
from thunder.torch.base import all_torchsymbols, language, torch_function_map, torchctx, torchsymbol
from thunder.torch.batch_norms import *  # noqa: F403
from thunder.torch.casting import *  # noqa: F403
from thunder.torch.conv import *  # noqa: F403
from thunder.torch.creation import *  # noqa: F403
from thunder.torch.creation_ranges import *  # noqa: F403
from thunder.torch.cross_entropy import *  # noqa: F403
from thunder.torch.data_dependent import *  # noqa: F403
from thunder.torch.diagonals import *  # noqa: F403
from thunder.torch.dropout import *  # noqa: F403
from thunder.torch.einsum import *  # noqa: F403
from thunder.torch.elementwise import *  # noqa: F403
from thunder.torch.elementwise_binary import *  # noqa: F403
from thunder.torch.elementwise_comparison import *  # noqa: F403
from thunder.torch.elementwise_complex import *  # noqa: F403
from thunder.torch.elementwise_conditional import *  # noqa: F403
from thunder.torch.elementwise_math import *  # noqa: F403
from thunder.torch.elementwise_rounding import *  # noqa: F403
from thunder.torch.elementwise_special import *  # noqa: F403
from thunder.torch.embedding import *  # noqa: F403
from thunder.torch.extremes import *  # noqa: F403
from thunder.torch.flex_attention import *  # noqa: F403
from thunder.torch.grouped_matmul import *  # noqa: F403
from thunder.torch.indexing import *  # noqa: F403
from thunder.torch.joining import *  # noqa: F403
from thunder.torch.loss_kernels import *  # noqa: F403
from thunder.torch.losses import *  # noqa: F403
from thunder.torch.margin_losses import *  # noqa: F403
from thunder.torch.matmul import *  # noqa: F403
from thunder.torch.matmul_add import *  # noqa: F403
from thunder.torch.norms import *  # noqa: F403
from thunder.torch.padding import *  # noqa: F403
from thunder.torch.patches import *  # noqa: F403
from thunder.torch.pooling import *  # noqa: F403
from thunder.torch.properties import *  # type: ignore[assignment]  # noqa: F403  (`numel` is a helper in others)
from thunder.torch.random import *  # noqa: F403
from thunder.torch.reductions import *  # noqa: F403
from thunder.torch.scans import *  # noqa: F403
from thunder.torch.scattering import *  # noqa: F403
from thunder.torch.searching import *  # noqa: F403
from thunder.torch.shape import *  # noqa: F403
from thunder.torch.softmax import *  # noqa: F403
from thunder.torch.sorting import *  # noqa: F403
from thunder.torch.splitting import *  # noqa: F403
from thunder.torch.statistics import *  # noqa: F403
from thunder.torch.transposes import *  # noqa: F403
from thunder.torch.vector_norms import *  # noqa: F403
from thunder.torch.vectors import *  # noqa: F403
from thunder.torch.vision import *  # noqa: F403

if TYPE_CHECKING:  # created from the declarations of primitives with the same names
    from thunder.core.prims.elementwise_binary import *  # noqa: F403
    from thunder.core.prims.elementwise_binary import div as true_divide
    from thunder.core.prims.elementwise_comparison import *  # noqa: F403
    from thunder.core.prims.elementwise_complex import *  # noqa: F403
    from thunder.core.prims.elementwise_math import *  # noqa: F403
    from thunder.core.prims.elementwise_rounding import *  # noqa: F403
    from thunder.core.prims.elementwise_special import *  # noqa: F403

import_families(__name__)
# Operations take precedence over other objects of the same name in the families' files, e.g. the dtype `bfloat16`.
globals().update({_sym.name: _sym for _sym in all_torchsymbols().values() if _sym.module == "thunder.torch"})

__all__ = [
    "TensorLike",
    "all_torchsymbols",
    "language",
    "to_dtype",
    "to_torch_device",
    "to_torch_dtype",
    "torch_function_map",
    "torchctx",
    "torchsymbol",
]
__all__.extend(
    sorted({_sym.name for _sym in all_torchsymbols().values() if _sym.module == "thunder.torch"} - {*__all__})
)
