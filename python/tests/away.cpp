// A device of PyTorch beside the host, for machines without one: its memory and its ops are those of the host, and PyTorch
// treats its tensors as it treats those of CUDA. Built by test_devices.py.

#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>
#include <cstdlib>
#include <cstring>
using namespace at;
namespace {
void release(void* memory) { std::free(memory); }
struct Memory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* memory = std::malloc(bytes ? bytes : 1);
    return {memory, memory, &release, c10::Device(c10::DeviceType::PrivateUse1, 0)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
};
Memory memory;
REGISTER_ALLOCATOR(c10::DeviceType::PrivateUse1, &memory);
struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::DeviceType::PrivateUse1; }
  c10::Device exchangeDevice(c10::Device device) const override { return device; }
  c10::Device getDevice() const override { return {c10::DeviceType::PrivateUse1, 0}; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Hooks final : PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
};
Hooks hooks;
const bool is_registered = [] { RegisterPrivateUse1HooksInterface(&hooks); return true; }();

Tensor empty(c10::SymIntArrayRef size, std::optional<ScalarType> dtype, std::optional<Layout>, std::optional<Device>,
             std::optional<bool>, std::optional<MemoryFormat> format) {
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), &memory, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                               dtype_or_default(dtype), format);
}
Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<ScalarType> dtype,
                     std::optional<Layout>, std::optional<Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), &memory,
                                       c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), dtype_or_default(dtype));
}
// The same elements, as a tensor of the host.
Tensor host(const Tensor& value) {
  if (value.device().is_cpu()) return value;
  return from_blob(value.data_ptr(), value.sizes(), value.strides(), [](void*) {}, value.options().device(kCPU));
}
Tensor copy_from(const Tensor& from, const Tensor& to, bool) { host(to).copy_(host(from)); return to; }
Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  to.resize_(from.sizes());
  host(to).copy_(host(from));
  return to;
}
Scalar scalar(const Tensor& value) { return host(value).item(); }
Tensor& set_storage(Tensor& to, Storage from, c10::SymInt offset, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  return native::set_storage_cpu_(to, from, offset.expect_int(), C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
}
const Tensor& resize(const Tensor& value, c10::SymIntArrayRef size, std::optional<MemoryFormat>) {
  native::resize_impl_cpu_(value.unsafeGetTensorImpl(), C10_AS_INTARRAYREF_SLOW(size), std::nullopt);
  return value;
}
void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) { native::cpu_fallback(op, stack); }
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &scalar);
  m.impl("as_strided", &native::as_strided_tensorimpl);
  m.impl("view", &native::view);
  m.impl("set_.source_Tensor", &native::set_tensor_);
  m.impl("set_.source_Storage", &native::set_);
  m.impl("set_.source_Storage_storage_offset", &set_storage);
  m.impl("resize_", &resize);
}
TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }
}
