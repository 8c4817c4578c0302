// SPDX-License-Identifier: Apache-2.0
// A device that is neither CPU nor CUDA, for tests: torch's PrivateUse1, with memory of the host that only its own
// kernels accept. Views and copies have kernels here. All other operators copy their arguments to the CPU and back. The
// device has two indices, a generator for each, and autocast with the lists that torch offers to backends.

#include <array>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

namespace {

constexpr auto kAcme = c10::DeviceType::PrivateUse1;
constexpr c10::DeviceIndex kDevices = 2;
thread_local c10::DeviceIndex current = 0;

// -- memory ----------------------------------------------------------------------------------------------------------
struct AcmeAllocator final : c10::Allocator {
  static void release(void* memory) { std::free(memory); }

  c10::DataPtr allocate(size_t nbytes) override {
    void* memory = nullptr;
    if (nbytes && posix_memalign(&memory, 64, nbytes)) {
      TORCH_CHECK(false, "acme: out of memory");
    }
    return {memory, memory, &release, c10::Device(kAcme, current)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release; }

  void copy_data(void* target, const void* source, std::size_t count) const override {
    std::memcpy(target, source, count);
  }
};

AcmeAllocator allocator;
REGISTER_ALLOCATOR(kAcme, &allocator);

struct AcmeGuard final : c10::impl::DeviceGuardImplInterface {
  static constexpr c10::DeviceType static_type = kAcme;
  c10::DeviceType type() const override { return kAcme; }
  c10::Device getDevice() const override { return {kAcme, current}; }
  void setDevice(c10::Device device) const override { current = device.index() < 0 ? current : device.index(); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current = device.index(); }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }
  c10::Stream getStream(c10::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream getDefaultStream(c10::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return c10::Stream(c10::Stream::DEFAULT, stream.device());
  }
  void synchronizeDevice(const c10::DeviceIndex) const override {}
  c10::Device exchangeDevice(c10::Device device) const override {
    c10::Device before = getDevice();
    setDevice(device);
    return before;
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, AcmeGuard);

// -- random numbers --------------------------------------------------------------------------------------------------
// A generator of the device draws from a generator of the CPU that is its own.
struct AcmeGenerator final : c10::GeneratorImpl {
  explicit AcmeGenerator(c10::DeviceIndex index, at::Generator drawn = at::detail::createCPUGenerator())
      : c10::GeneratorImpl(c10::Device(kAcme, index), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        cpu(std::move(drawn)) {}
  void set_current_seed(uint64_t seed) override { cpu.set_current_seed(seed); }
  void set_offset(uint64_t) override { TORCH_CHECK(false, "acme: generators have no offset"); }
  uint64_t get_offset() const override { TORCH_CHECK(false, "acme: generators have no offset"); }
  uint64_t current_seed() const override { return cpu.current_seed(); }
  uint64_t seed() override { return cpu.seed(); }
  void set_state(const c10::TensorImpl& state) override { cpu.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return cpu.unsafeGetGeneratorImpl()->get_state(); }
  AcmeGenerator* clone_impl() const override { return new AcmeGenerator(device_.index(), cpu.clone()); }

  at::Generator cpu;
};

const at::Generator& default_generator(c10::DeviceIndex index) {
  static const std::array<at::Generator, kDevices> all{
      at::make_generator<AcmeGenerator>(0), at::make_generator<AcmeGenerator>(1)};
  return all.at(index < 0 ? current : index);
}

struct AcmeHooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  c10::DeviceIndex getCurrentDevice() const override { return current; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override { return default_generator(index); }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    return at::make_generator<AcmeGenerator>(index < 0 ? current : index);
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t nbytes) const override {
    c10::DataPtr larger = allocator.allocate(nbytes);
    std::memcpy(larger.get(), storage.data(), std::min(nbytes, storage.nbytes()));
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(larger));
    storage.unsafeGetStorageImpl()->set_nbytes(nbytes);
  }
};

const bool registered = [] {
  static AcmeHooks hooks;
  at::RegisterPrivateUse1HooksInterface(&hooks);
  return true;
}();

void manual_seed(int64_t seed, int64_t device) {
  at::Generator generator = default_generator(device);
  generator.set_current_seed(seed);
}

at::Tensor get_rng_state(int64_t device) { return default_generator(device).get_state(); }
void set_rng_state(const at::Tensor& state, int64_t device) {
  at::Generator generator = default_generator(device);
  generator.set_state(state);
}
int64_t current_device() { return current; }
void set_device(int64_t device) { current = device; }

// -- kernels ---------------------------------------------------------------------------------------------------------
c10::Device device_of(c10::optional<c10::Device> device) {
  return {kAcme, device && device->has_index() ? device->index() : current};
}

at::Tensor empty_memory_format(
    c10::SymIntArrayRef size, c10::optional<c10::ScalarType> dtype, c10::optional<c10::Layout>,
    c10::optional<c10::Device> device, c10::optional<bool>, c10::optional<c10::MemoryFormat> format) {
  const c10::DeviceGuard guard(device_of(device));
  return at::detail::empty_generic(
      C10_AS_INTARRAYREF_SLOW(size), &allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(
    c10::IntArrayRef size, c10::IntArrayRef stride, c10::optional<c10::ScalarType> dtype, c10::optional<c10::Layout>,
    c10::optional<c10::Device> device, c10::optional<bool>) {
  const c10::DeviceGuard guard(device_of(device));
  return at::detail::empty_strided_generic(
      size, stride, &allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::dtype_or_default(dtype));
}

// Returns a tensor of the CPU in the memory of a tensor of the device.
at::Tensor on_host(const at::Tensor& x) {
  if (x.device().is_cpu()) {
    return x;
  }
  at::Tensor host = at::from_blob(
      const_cast<char*>(static_cast<const char*>(x.storage().data())) + x.storage_offset() * x.dtype().itemsize(),
      x.sizes(), x.strides(), x.options().device(at::kCPU));
  return x.is_conj() ? host.conj() : x.is_neg() ? host._neg_view() : host;
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  on_host(to).copy_(on_host(from));
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  at::native::resize_output(to, from.sizes());
  return copy_from(from, to, false);
}

at::Scalar local_scalar(const at::Tensor& x) { return on_host(x).item(); }

std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& x, double p, c10::optional<bool> train) {
  if (!train.value_or(true)) {
    return {x.clone(), at::ones_like(x, x.options().dtype(at::kBool))};
  }
  at::Tensor mask = at::empty_like(x, x.options().dtype(at::kBool)).bernoulli_(1 - p);
  return {x * mask * (p < 1 ? 1 / (1 - p) : 0.0), mask};
}

at::Tensor native_dropout_backward(const at::Tensor& grad, const at::Tensor& mask, double scale) {
  return grad * mask * scale;
}

// Runs an operator on the CPU. Random numbers come from the device's generators.
void on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  const auto begin = stack->size() - arguments.size();
  c10::DeviceIndex index = current;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue& value = (*stack)[begin + i];
    if (value.isTensor() && value.toTensor().defined() && value.toTensor().device().type() == kAcme) {
      index = value.toTensor().device().index();
      break;
    }
  }
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto kind = arguments[i].real_type();
    const bool optional = kind->kind() == c10::TypeKind::OptionalType;
    const auto inner = optional ? kind->expectRef<c10::OptionalType>().getElementType() : kind;
    if (inner->kind() != c10::TypeKind::GeneratorType) {
      continue;
    }
    c10::IValue& value = (*stack)[begin + i];
    at::Generator given = value.isNone() ? default_generator(index) : value.toGenerator();
    if (given.device().type() == kAcme) {
      value = c10::IValue(static_cast<AcmeGenerator*>(given.unsafeGetGeneratorImpl())->cpu);
    }
  }
  at::native::cpu_fallback(op, stack);
}

}  // namespace

TORCH_LIBRARY(acme_device, m) {
  m.def("manual_seed(int seed, int device) -> ()", &manual_seed);
  m.def("get_rng_state(int device) -> Tensor", &get_rng_state);
  m.def("set_rng_state(Tensor state, int device) -> ()", &set_rng_state);
  m.def("current_device() -> int", &current_device);
  m.def("set_device(int device) -> ()", &set_device);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_cpu>()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty_memory_format);
  m.impl("empty_strided", &empty_strided);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &local_scalar);
  m.impl("as_strided", [](const at::Tensor& x, c10::IntArrayRef size, c10::IntArrayRef stride,
                          c10::optional<int64_t> offset) { return at::native::as_strided_tensorimpl(x, size, stride, offset); });
  m.impl("view", [](const at::Tensor& x, c10::IntArrayRef size) { return at::native::view(x, size); });
  m.impl("_reshape_alias", [](const at::Tensor& x, c10::IntArrayRef size, c10::IntArrayRef stride) {
    return at::native::_reshape_alias(x, size, stride);
  });
  m.impl("unfold", [](const at::Tensor& x, int64_t dim, int64_t size, int64_t step) {
    return at::native::unfold(x, dim, size, step);
  });
  m.impl("view_as_real", [](const at::Tensor& x) { return at::native::view_as_real(x); });
  m.impl("view_as_complex", [](const at::Tensor& x) { return at::native::view_as_complex(x); });
  m.impl("alias", [](const at::Tensor& x) { return at::native::alias(x); });
  m.impl("set_.source_Storage_storage_offset", [](at::Tensor& x, at::Storage storage, int64_t offset,
                                                  c10::IntArrayRef size, c10::IntArrayRef stride) -> at::Tensor& {
    return at::native::set_storage_cpu_(x, storage, offset, size, stride);
  });
  m.impl("resize_", [](const at::Tensor& x, c10::IntArrayRef size, c10::optional<c10::MemoryFormat> format)
                        -> const at::Tensor& { return at::native::resize_(x, size, format); });
  m.impl("native_dropout", &native_dropout);
  m.impl("native_dropout_backward", &native_dropout_backward);
}

// Copies resolve conjugated and negated views themselves; otherwise torch would copy such a view before it copies it.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, Negative, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

using namespace at::autocast;
#define LOWER(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define FLOAT32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define WIDEST(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
#define SET_DTYPE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  AT_FORALL_LOWER_PRECISION_FP(LOWER)
  AT_FORALL_FP32(FLOAT32)
  AT_FORALL_FP32_SET_OPT_DTYPE(SET_DTYPE)
  AT_FORALL_PROMOTE(WIDEST)
}
