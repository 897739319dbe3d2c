// Checks that ops share: dtypes, shapes, devices, memory. All error messages have the form
// "<op>: <argument> must <rule>, got <fact>". Checks for a single op are in that op's folder.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <initializer_list>

#include "kernels/common/dtype.h"

namespace treadle {

using at::ScalarType;
using at::Tensor;

// The dtype's name in Python: float32, not Float.
const char* dtype_name(ScalarType dtype);

bool is_number_dtype(ScalarType dtype);    // a dtype in which elementwise ops compute
bool is_floating_dtype(ScalarType dtype);  // half, bfloat16, float, double
Dtype to_dtype(ScalarType dtype);          // raises for a dtype without kernels

// Checks the dtype in which an elementwise op computes, which is the result of promotion.
void check_compute_dtype(const char* op, const char* argument, ScalarType dtype);

// Checks that an existing output is on `device` and that results can be cast to its dtype.
void check_result(const char* op, const char* argument, const Tensor& out, ScalarType compute,
                  at::Device device);

// Checks that the result of an in-place form has the shape of the argument that it overwrites.
void check_inplace_shape(const char* op, const char* argument, const Tensor& out,
                         c10::SymIntArrayRef shape);

// Checks that no two elements of an output share memory, and that the output does not partly
// overlap an input. Skips tensors with symbolic sizes, which are checked when the op runs.
void check_memory(const char* op, const char* argument, const Tensor& out, const char* input_name,
                  const Tensor& input);

// For an op of one tensor x: checks `compute` and, if `out` is defined, its dtype, device and
// memory.
void check_unary_output(const char* op, const Tensor& x, ScalarType compute, const Tensor& out);

void check_broadcast(const char* op, const char* a_name, const Tensor& a, const char* b_name,
                     const Tensor& b);

// Raises if t reaches past the end of its storage, which may have been resized since t was created.
void check_storage(const char* op, const char* argument, const Tensor& t);

// check_storage for a composite op, whose arguments may be wrapper tensors of vmap or torch.func.
// A fake tensor is not checked, because it has no data.
void check_composite_storage(const char* op, const char* argument, const Tensor& t);

// Whether dispatch keys are those of plain CPU or CUDA tensors outside of modes and transforms, so
// that a composite op may run below the dispatcher.
bool are_dense_keys(const c10::DispatchKeySet& keys);

// A tensor whose values a composite op may read: t without the wrappers of vmap and torch.func, and
// therefore with all samples of a batch. Undefined if t is a fake or meta tensor, which has no
// values.
Tensor known_values(const Tensor& t);

inline bool has(const std::optional<Tensor>& t) { return t.has_value() && t->defined(); }

inline void check_storage_if_any(const char* op, const char* argument,
                                 const std::optional<Tensor>& t) {
  if (has(t)) check_storage(op, argument, *t);
}

// check_storages calls check_storage for several arguments, and skips undefined tensors.
struct NamedTensor {
  const char* name;
  const Tensor& tensor;
};
void check_storages(const char* op, std::initializer_list<NamedTensor> arguments);

// `letters` is the shape as it is documented, such as "[T, B]".
void check_shape(const char* op, const char* argument, const char* letters, const Tensor& t,
                 c10::SymIntArrayRef shape);

void check_same_shape(const char* op, const char* argument, const Tensor& t, const char* model_name,
                      const Tensor& model);

// Checks that t has the device and dtype of `model`, another argument.
void check_like(const char* op, const char* argument, const Tensor& t, const char* model_name,
                const Tensor& model);

// Checks that a cell's state has input's device and dtype. If input has a half type, the state may
// also be float32.
void check_cell_state(const char* op, const char* argument, const Tensor& t, const Tensor& input);

}  // namespace treadle
