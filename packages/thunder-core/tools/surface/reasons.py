# SPDX-License-Identifier: Apache-2.0
"""Public names of torch that are not operations on (strided) tensors, each with the reason.

Patterns are those of `fnmatch`, over qualified names. A name that is listed here has no samples. A test rejects
patterns that match no name, and names that also have samples.
"""

from __future__ import annotations

import fnmatch
import functools

__all__ = ["REASONS", "patterns", "reason_of"]

REASONS: dict[str, tuple[str, ...]] = {
    "It reads or sets a setting of torch. The call is not recorded: it runs while a program is traced, and the "
    "setting is guarded if results depend on it.": (
        "torch.are_deterministic_algorithms_enabled",
        "torch.autocast_*_nesting",
        "torch.clear_autocast_cache",
        "torch.compiled_with_cxx11_abi",
        "torch.get_autocast_*",
        "torch.get_default_*",
        "torch.get_deterministic_debug_mode",
        "torch.get_device_module",
        "torch.get_float32_matmul_precision",
        "torch.get_num_*threads",
        "torch.init_num_threads",
        "torch.is_anomaly_*enabled",
        "torch.is_autocast_*enabled",
        "torch.is_deterministic_algorithms_warn_only_enabled",
        "torch.is_grad_enabled",
        "torch.is_inference_mode_enabled",
        "torch.is_vulkan_available",
        "torch.is_warn_always_enabled",
        "torch.prepare_multiprocessing_environment",
        "torch.profiler_allow_cudagraph_cupti_lazy_reinit_cuda12",
        "torch.set_anomaly_enabled",
        "torch.set_autocast_*",
        "torch.set_default_*",
        "torch.set_deterministic_debug_mode",
        "torch.set_float32_matmul_precision",
        "torch.set_flush_denormal",
        "torch.set_num_*threads",
        "torch.set_printoptions",
        "torch.set_warn_always",
        "torch.use_deterministic_algorithms",
    ),
    "It reads or sets the state of a random generator. Traced programs draw from the generator; the caller sets its "
    "state.": (
        "torch.get_rng_state",
        "torch.initial_seed",
        "torch.manual_seed",
        "torch.seed",
        "torch.set_rng_state",
        "torch.thread_safe_generator",
    ),
    "It is a helper of torch's Python code or of Python's object protocol, and computes nothing.": (
        "torch.classproperty",
        "torch.get_file_path",
        "torch.is_storage",
        "torch.typename",
        "torch.nn.functional.Optional",
        "torch.nn.functional.assert_int_or_pair",
        "torch.nn.functional.boolean_dispatch",
        "torch.nn.functional.handle_torch_function",
        "torch.nn.functional.has_torch_function*",
        "torch.Tensor.__array_priority__",
        "torch.Tensor.__array_wrap__",
        "torch.Tensor.__dir__",
        "torch.Tensor.__format__",
        "torch.Tensor.__reduce_ex__",
        "torch.Tensor.__repr__",
        "torch.Tensor.__setstate__",
        "torch.Tensor.__torch_dispatch__",
        "torch.Tensor.__torch_function__",
        "torch.Tensor.as_subclass",
        "torch.Tensor.module_load",
    ),
    "It belongs to TorchScript, which is another compiler.": (
        "torch.fork",
        "torch.import_ir_module*",
        "torch.merge_type_from_type_comment",
        "torch.parse_ir",
        "torch.parse_schema",
        "torch.parse_type_comment",
        "torch.unify_type_list",
        "torch.wait",
    ),
    "It reads or writes a file. Load tensors before the traced program, and pass them as arguments.": (
        "torch.from_file",
        "torch.load",
        "torch.save",
    ),
    "It exports or imports memory. While a program is traced, its tensors have no memory.": (
        "torch.from_dlpack",
        "torch.from_numpy",
        "torch.frombuffer",
        "torch.to_dlpack",
        "torch.Tensor.__cuda_array_interface__",
        "torch.Tensor.__dlpack*",
        "torch.Tensor.const_data_ptr",
        "torch.Tensor.data_ptr",
        "torch.Tensor.is_set_to",
        "torch.Tensor.is_shared",
        "torch.Tensor.pin_memory",
        "torch.Tensor.record_stream",
        "torch.Tensor.set_",
        "torch.Tensor.share_memory_",
        "torch.Tensor.storage",
        "torch.Tensor.storage_type",
        "torch.Tensor.untyped_storage",
    ),
    "It changes the amount of memory of a tensor. The values of new elements are undefined.": (
        "torch.resize_as_",
        "torch.Tensor.resize",
        "torch.Tensor.resize_",
        "torch.Tensor.resize_as",
        "torch.Tensor.resize_as_",
    ),
    "It needs the value of a tensor as a Python object, or branches on it. While a program is traced there is no "
    "value, so the call raises an error that names the line and suggests alternatives, e.g. `item()`, which returns "
    "a symbolic number.": (
        "torch.allclose",
        "torch.equal",
        "torch.is_nonzero",
        "torch.lobpcg",
        "torch.Tensor.__array__",
        "torch.Tensor.__bool__",
        "torch.Tensor.__complex__",
        "torch.Tensor.__contains__",
        "torch.Tensor.__float__",
        "torch.Tensor.__index__",
        "torch.Tensor.__int__",
        "torch.Tensor.__long__",
        "torch.Tensor.__nonzero__",
        "torch.Tensor.allclose",
        "torch.Tensor.equal",
        "torch.Tensor.is_nonzero",
        "torch.Tensor.numpy",
    ),
    "It calls a Python function with the value of each element.": (
        "torch.Tensor.apply_",
        "torch.Tensor.map2_",
        "torch.Tensor.map_",
    ),
    "It is for sparse tensors. thunder traces strided tensors.": (
        "torch.*_indices_copy",
        "torch.hspmm",
        "torch.hsmm",
        "torch.indices_copy",
        "torch.native_norm",
        "torch.resize_as_sparse_",
        "torch.saddmm",
        "torch.smm",
        "torch.sparse_*_tensor",
        "torch.sspaddmm",
        "torch.values_copy",
        "torch.Tensor.*_indices",
        "torch.Tensor.coalesce",
        "torch.Tensor.indices",
        "torch.Tensor.is_coalesced",
        "torch.Tensor.dense_dim",
        "torch.Tensor.resize_as_sparse_",
        "torch.Tensor.smm",
        "torch.Tensor.sparse_*",
        "torch.Tensor.sspaddmm",
        "torch.Tensor.to_sparse*",
        "torch.Tensor.to_padded_tensor",
        "torch.Tensor.values",
    ),
    "It is for quantized tensors. thunder traces strided tensors.": (
        "torch.choose_qparams_optimized",
        "torch.dequantize",
        "torch.empty_quantized",
        "torch.int_repr",
        "torch.q_*",
        "torch.quantize_*",
        "torch.quantized_*",
        "torch.Tensor.dequantize",
        "torch.Tensor.int_repr",
        "torch.Tensor.q_*",
        "torch.Tensor.qscheme",
    ),
    "It is the kernel of one backend. Programs call the function of torch that selects the kernel.": (
        "torch.batch_norm_backward_*",
        "torch.batch_norm_elemt",
        "torch.batch_norm_gather_stats*",
        "torch.batch_norm_stats",
        "torch.batch_norm_update_stats",
        "torch.cudnn_*",
        "torch.fbgemm_*",
        "torch.miopen_*",
        "torch.mkldnn_*",
        "torch.nn.functional.scaled_grouped_mm",
        "torch.nn.functional.scaled_mm",
        "torch.Tensor.to_mkldnn",
    ),
    "It moves a tensor to a type of device that this build of torch may not support. Use `to`.": (
        "torch.Tensor.cuda",
        "torch.Tensor.ipu",
        "torch.Tensor.mtia",
        "torch.Tensor.xpu",
    ),
    "torch has removed it. Calling it raises an error that names the replacement.": (
        "torch.eig",
        "torch.lstsq",
        "torch.matrix_rank",
        "torch.solve",
        "torch.symeig",
        "torch.Tensor.eig",
        "torch.Tensor.lstsq",
        "torch.Tensor.reinforce",
        "torch.Tensor.solve",
        "torch.Tensor.symeig",
        "torch.Tensor.volatile",
    ),
    "It raises an error for every tensor, or is reserved for torch's own passes.": (
        "torch.slice_inverse",
        "torch.Tensor.__delitem__",
        "torch.Tensor.index",
        "torch.Tensor.slice_inverse",
    ),
    "Its argument is a function, which it transforms or runs conditionally.": (
        "torch.compile",
        "torch.cond",
        "torch.vmap",
        "torch.while_loop",
    ),
    "It is for the symbolic sizes of torch's own tracers.": ("torch.sym_*",),
    "It interacts with autograd. Compute gradients from the results of the traced program, outside of the program.": (
        "torch.Tensor.backward",
        "torch.Tensor.grad",
        "torch.Tensor.register_hook",
        "torch.Tensor.register_post_accumulate_grad_hook",
        "torch.Tensor.retain_grad",
    ),
}


def patterns() -> list[str]:
    """Return every pattern."""
    return [pattern for group in REASONS.values() for pattern in group]


@functools.cache
def reason_of(path: str) -> str | None:
    """Return why a name is not an operation on tensors; None if it is one."""
    for reason, group in REASONS.items():
        if any(fnmatch.fnmatchcase(path, pattern) for pattern in group):
            return reason
    return None
