// Checks that ops share: dtypes, shapes, devices, memory. Their errors follow one grammar,
// "<op>: <argument> must <rule>, got <fact>". An op's own checks are in its folder.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <initializer_list>

#include "kernels/common/dtype.h"

namespace treadle {

using at::ScalarType;
using at::Tensor;

// As Python spells it: float32, not Float.
const char* dtype_name(ScalarType dtype);

bool is_number_dtype(ScalarType dtype);    // the dtype in which elementwise ops compute
bool is_floating_dtype(ScalarType dtype);  // half, bfloat16, float, double
Dtype to_dtype(ScalarType dtype);          // raises for a dtype without kernels

// Checks the dtype in which an elementwise op computes, the result of promotion.
void check_compute_dtype(const char* op, const char* argument, ScalarType dtype);

// Checks that an existing output has the right dtype category and device.
void check_result(const char* op, const char* argument, const Tensor& out, ScalarType compute,
                  at::Device device);

// Checks an in-place form, whose result must have the shape of the argument.
void check_inplace_shape(const char* op, const char* argument, const Tensor& out,
                         c10::SymIntArrayRef shape);

// A tensor to be written must have no element twice in memory, and must not partly overlap another
// argument. Symbolic sizes are checked when the op runs.
void check_memory(const char* op, const char* argument, const Tensor& out, const char* input_name,
                  const Tensor& input);

// For an op of one tensor x: checks its dtype, and all of the above for `out` if that is defined.
void check_unary_output(const char* op, const Tensor& x, ScalarType compute, const Tensor& out);

void check_broadcast(const char* op, const char* a_name, const Tensor& a, const char* b_name,
                     const Tensor& b);

// Raises if t reaches past the end of its storage, which may have been resized under the tensor.
void check_storage(const char* op, const char* argument, const Tensor& t);

// check_storage for a composite op, which may get wrappers. A fake tensor is not checked, because
// its storage is unknown.
void check_composite_storage(const char* op, const char* argument, const Tensor& t);

// The values of t that a composite op may read: unwrapped, with every sample of vmap. Undefined for
// fake and meta tensors, which have no values.
Tensor known_values(const Tensor& t);

inline bool has(const std::optional<Tensor>& t) { return t.has_value() && t->defined(); }

inline void check_storage_if_any(const char* op, const char* argument,
                                 const std::optional<Tensor>& t) {
  if (has(t)) check_storage(op, argument, *t);
}

// The same for several arguments; undefined ones are skipped.
struct NamedTensor {
  const char* name;
  const Tensor& tensor;
};
void check_storages(const char* op, std::initializer_list<NamedTensor> arguments);

// `letters` is the shape as the docs spell it.
void check_shape(const char* op, const char* argument, const char* letters, const Tensor& t,
                 c10::SymIntArrayRef shape);

void check_same_shape(const char* op, const char* argument, const Tensor& t, const char* model_name,
                      const Tensor& model);

// The device and dtype must be those of another argument.
void check_like(const char* op, const char* argument, const Tensor& t, const char* model_name,
                const Tensor& model);

// A cell's state must have input's device and dtype, or float32 with a half type.
void check_cell_state(const char* op, const char* argument, const Tensor& t, const Tensor& input);

}  // namespace treadle
