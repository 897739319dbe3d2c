#include "elementwise.h"

#include <ATen/native/TypeProperties.h>

namespace treadle {

at::TensorIterator make_iterator(const char* op, const Tensor& out, const Tensor& x,
                                 ScalarType compute, bool inplace) {
  check_storage(op, "x", x);
  if (out.defined() && !inplace) check_storage(op, "out", out);
  return at::TensorIteratorConfig()
      .set_check_mem_overlap(false)  // check_memory has done it
      .check_all_same_dtype(false)
      .resize_outputs(!inplace)
      .declare_static_dtype(compute)
      .add_output(out)
      .add_const_input(x)
      .build();
}

at::TensorIterator make_iterator(const char* op, const Tensor& out, const Tensor& a,
                                 const Tensor& b, ScalarType compute, bool inplace) {
  check_storage(op, "a", a);
  check_storage(op, "b", b);
  if (out.defined() && !inplace) check_storage(op, "out", out);
  return at::TensorIteratorConfig()
      .set_check_mem_overlap(false)  // check_memory has done it
      .check_all_same_dtype(false)
      .allow_cpu_scalars(true)
      .resize_outputs(!inplace)
      .declare_static_dtype(compute)
      .add_output(out)
      .add_const_input(a)
      .add_const_input(b)
      .build();
}

Number to_number(const Scalar& s) {
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
