# SPDX-License-Identifier: Apache-2.0
"""Primitives: every program decomposes into them. Each file contains one family of primitives."""

from thunder.core.families import import_families
from thunder.core.prims.attention import *  # noqa: F403
from thunder.core.prims.autodiff import get_grad, needs_grad, put_grad, put_grads, rule_of_vjp, zero_vjp
from thunder.core.prims.base import PrimID, PrimIDs, all_prims, make_prim, prim
from thunder.core.prims.collectives import *  # noqa: F403
from thunder.core.prims.conv import *  # noqa: F403
from thunder.core.prims.creation import *  # noqa: F403
from thunder.core.prims.data import *  # noqa: F403
from thunder.core.prims.dropout import *  # noqa: F403
from thunder.core.prims.elementwise_binary import *  # noqa: F403
from thunder.core.prims.elementwise_comparison import *  # noqa: F403
from thunder.core.prims.elementwise_complex import *  # noqa: F403
from thunder.core.prims.elementwise_conditional import *  # noqa: F403
from thunder.core.prims.elementwise_math import *  # noqa: F403
from thunder.core.prims.elementwise_rounding import *  # noqa: F403
from thunder.core.prims.elementwise_special import *  # noqa: F403
from thunder.core.prims.embedding import *  # noqa: F403
from thunder.core.prims.grouped_matmul import *  # noqa: F403
from thunder.core.prims.indexing import *  # noqa: F403
from thunder.core.prims.layouts import *  # noqa: F403
from thunder.core.prims.matmul import *  # noqa: F403
from thunder.core.prims.numbers import *  # noqa: F403
from thunder.core.prims.pooling import *  # noqa: F403
from thunder.core.prims.random import *  # noqa: F403
from thunder.core.prims.recompute import *  # noqa: F403
from thunder.core.prims.reductions import *  # noqa: F403
from thunder.core.prims.resize import *  # noqa: F403
from thunder.core.prims.scans import *  # noqa: F403
from thunder.core.prims.scattering import *  # noqa: F403
from thunder.core.prims.shape import *  # noqa: F403
from thunder.core.prims.sorting import *  # noqa: F403
from thunder.core.prims.strided import *  # noqa: F403
from thunder.core.prims.structure import *  # noqa: F403
from thunder.core.symbol import NON_DIFFERENTIABLE, OpTags

import_families(__name__)
