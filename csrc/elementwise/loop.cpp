#include "elementwise/loop.h"

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/Functions.h>
#include <ATen/native/TypeProperties.h>
#include <c10/core/DeviceGuard.h>

namespace treadle {

ElementwiseLoop::ElementwiseLoop(const char* op, const Tensor& out, const Tensor& x,
                                 ScalarType compute)
    : op(op), compute(compute), operands(2) {
  check_storage(op, "x", x);
  if (try_dense(out, {&x})) return;
  iterate(out, {&x});
}

ElementwiseLoop::ElementwiseLoop(const char* op, const Tensor& out, const Tensor& a,
                                 const Tensor& b, ScalarType compute)
    : op(op), compute(compute), operands(3) {
  check_storage(op, "a", a);
  check_storage(op, "b", b);
  if (try_dense(out, {&a, &b})) return;
  iterate(out, {&a, &b}, /*cpu_scalars=*/true);
}

ElementwiseLoop::ElementwiseLoop(const char* op, const Tensor& out, const Tensor& x,
                                 const Tensor& alpha, const Tensor& beta, ScalarType compute)
    : op(op), compute(compute), operands(4) {
  check_storages(op, {{"x", x}, {"alpha", alpha}, {"beta", beta}});
  iterate(out, {&x, &alpha, &beta});
}

void ElementwiseLoop::iterate(const Tensor& out, std::initializer_list<const Tensor*> inputs,
                              bool cpu_scalars) {
  const bool in_place = out.is_same(**inputs.begin());
  if (out.defined() && !in_place) check_storage(op, "out", out);
  at::TensorIteratorConfig config;
  config
      .set_check_mem_overlap(false)  // check_memory has already checked it
      .check_all_same_dtype(false)
      .allow_cpu_scalars(cpu_scalars)
      .resize_outputs(!in_place)
      .declare_static_dtype(compute)
      .add_output(out);
  for (const Tensor* t : inputs) config.add_const_input(*t);
  iterator.emplace(config.build());
  output = iterator->output();
}

// Like at::empty, but without its two dispatcher calls. In deterministic mode, in which torch may
// fill new memory, it calls at::empty.
static Tensor empty_dense(const Tensor& like) {
  const bool cuda = like.is_cuda();
  if (!(cuda || like.is_cpu()) || at::globalContext().deterministicAlgorithms()) {
    return at::empty(like.sizes(), like.options());
  }
  const c10::DeviceGuard guard(like.device());
  return at::detail::empty_generic(
      like.sizes(), c10::GetAllocator(like.device().type()),
      c10::DispatchKeySet(cuda ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU),
      like.scalar_type(), std::nullopt);
}

// Sets up dense operands without an iterator. The output is a new tensor or the first input.
// Returns false if the operands are not dense.
bool ElementwiseLoop::try_dense(const Tensor& out, std::initializer_list<const Tensor*> inputs) {
  const Tensor& first = **inputs.begin();
  if (out.defined() && !out.is_same(first)) return false;
  for (const Tensor* t : inputs) {
    if (t->scalar_type() != compute || !t->is_contiguous() || t->device() != first.device() ||
        t->sizes() != first.sizes()) {
      return false;
    }
  }
  output = out.defined() ? out : empty_dense(first);
  data[0] = static_cast<char*>(output.mutable_data_ptr());
  for (int i = 1; i < operands; ++i) {
    data[i] = static_cast<char*>(const_cast<void*>(inputs.begin()[i - 1]->const_data_ptr()));
  }
  return true;
}

ScalarArg to_scalar_arg(const Scalar& s) {
  if (s.isFloatingPoint()) return {s.toDouble(), 0, false};
  if (s.type() == ScalarType::UInt64) {
    return {0.0, static_cast<int64_t>(s.toUInt64()), true, /*is_unsigned=*/true};
  }
  return {0.0, s.toLong(), true};
}

ScalarType promote(const Tensor& x, const Scalar& s) {
  if (is_floating_dtype(x.scalar_type()) && !s.isComplex()) return x.scalar_type();
  auto state = at::native::update_result_type_state(x, {});
  return at::native::result_type(at::native::update_result_type_state(s, state));
}

ScalarType promote(const Tensor& a, const Tensor& b) {
  if (a.scalar_type() == b.scalar_type()) return a.scalar_type();
  auto state = at::native::update_result_type_state(a, {});
  return at::native::result_type(at::native::update_result_type_state(b, state));
}

}  // namespace treadle
