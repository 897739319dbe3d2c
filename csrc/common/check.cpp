#include "common/check.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/functorch/BatchedTensorImpl.h>
#include <ATen/functorch/TensorWrapper.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <iterator>

namespace treadle {

const char* dtype_name(ScalarType dtype) {
  switch (dtype) {
    case ScalarType::Bool:
      return "bool";
    case ScalarType::Byte:
      return "uint8";
    case ScalarType::Char:
      return "int8";
    case ScalarType::Short:
      return "int16";
    case ScalarType::Int:
      return "int32";
    case ScalarType::Long:
      return "int64";
    case ScalarType::Half:
      return "float16";
    case ScalarType::BFloat16:
      return "bfloat16";
    case ScalarType::Float:
      return "float32";
    case ScalarType::Double:
      return "float64";
    case ScalarType::ComplexHalf:
      return "complex32";
    case ScalarType::ComplexFloat:
      return "complex64";
    case ScalarType::ComplexDouble:
      return "complex128";
    default:
      return c10::toString(dtype);
  }
}

// Torch's dtypes, in the order of the enum Dtype.
static constexpr ScalarType kDtypes[] = {
    ScalarType::Bool, ScalarType::Byte, ScalarType::Char,     ScalarType::Short, ScalarType::Int,
    ScalarType::Long, ScalarType::Half, ScalarType::BFloat16, ScalarType::Float, ScalarType::Double,
};

Dtype to_dtype(ScalarType dtype) {
  const auto* found = std::find(std::begin(kDtypes), std::end(kDtypes), dtype);
  TORCH_CHECK(found != std::end(kDtypes), "treadle has no kernels for dtype ", dtype_name(dtype));
  return static_cast<Dtype>(found - kDtypes);
}

bool is_floating_dtype(ScalarType dtype) {
  return dtype == ScalarType::Half || dtype == ScalarType::BFloat16 || dtype == ScalarType::Float ||
         dtype == ScalarType::Double;
}

bool is_number_dtype(ScalarType dtype) {
  return is_floating_dtype(dtype) || dtype == ScalarType::Byte || dtype == ScalarType::Char ||
         dtype == ScalarType::Short || dtype == ScalarType::Int || dtype == ScalarType::Long;
}

void check_compute_dtype(const char* op, const char* argument, ScalarType dtype) {
  TORCH_CHECK(is_number_dtype(dtype), op, ": ", argument,
              " must give a result of an integer or floating-point dtype, got ", dtype_name(dtype));
}

void check_result(const char* op, const char* argument, const Tensor& out, ScalarType compute,
                  at::Device device) {
  TORCH_CHECK(c10::canCast(compute, out.scalar_type()) &&
                  (is_number_dtype(out.scalar_type()) || out.scalar_type() == ScalarType::Bool),
              op, ": ", argument, " must have a dtype that a ", dtype_name(compute),
              " result can be cast to, got ", dtype_name(out.scalar_type()));
  TORCH_CHECK(out.device() == device, op, ": ", argument, " must be on ", device, ", got ",
              out.device());
}

void check_inplace_shape(const char* op, const char* argument, const Tensor& out,
                         c10::SymIntArrayRef shape) {
  TORCH_CHECK(out.sym_sizes().equals(shape), op, ": ", argument,
              " must have the shape of the result, ", shape, ", got ", out.sym_sizes());
}

static bool is_symbolic(const Tensor& t) {
  return t.unsafeGetTensorImpl()->has_symbolic_sizes_strides();
}

void check_memory(const char* op, const char* argument, const Tensor& out, const char* input_name,
                  const Tensor& input) {
  if (is_symbolic(out) || is_symbolic(input)) return;
  TORCH_CHECK(at::has_internal_overlap(out) != at::MemOverlap::Yes, op, ": ", argument,
              " must have memory of its own for every element, got shape ", out.sizes(),
              " and strides ", out.strides());
  if (out.is_same(input)) return;
  TORCH_CHECK(at::get_overlap_status(out, input) != at::MemOverlapStatus::Partial, op, ": ",
              argument, " must be ", input_name,
              " or share no memory with it, got one that partly overlaps it");
}

void check_unary_output(const char* op, const Tensor& x, ScalarType compute, const Tensor& out) {
  check_compute_dtype(op, "x", compute);
  if (!out.defined()) return;
  const char* written = out.is_same(x) ? "x" : "out";
  check_result(op, written, out, compute, x.device());
  check_memory(op, written, out, "x", x);
}

void check_broadcast(const char* op, const char* a_name, const Tensor& a, const char* b_name,
                     const Tensor& b) {
  if (is_symbolic(a) || is_symbolic(b)) return;
  const auto x = a.sizes(), y = b.sizes();
  bool fits = true;
  for (size_t i = 1; i <= std::min(x.size(), y.size()); ++i) {
    const auto p = x[x.size() - i], q = y[y.size() - i];
    fits = fits && (p == q || p == 1 || q == 1);
  }
  TORCH_CHECK(fits, op, ": ", b_name, " must have a shape that broadcasts with that of ", a_name,
              ", ", x, ", got ", y);
}

void check_storage(const char* op, const char* argument, const Tensor& t) {
  if (t.numel() == 0) return;
  int64_t last = t.storage_offset();
  for (int64_t d = 0; d < t.dim(); ++d) last += (t.size(d) - 1) * t.stride(d);
  const auto needed = (last + 1) * static_cast<int64_t>(t.element_size());
  TORCH_CHECK(static_cast<int64_t>(t.storage().nbytes()) >= needed, op, ": ", argument,
              " must have a storage of at least ", needed, " bytes, got ", t.storage().nbytes(),
              " bytes");
}

void check_storages(const char* op, std::initializer_list<NamedTensor> arguments) {
  for (const auto& [name, tensor] : arguments) {
    if (tensor.defined()) check_storage(op, name, tensor);
  }
}

// The tensor inside all wrappers of vmap and torch.func.
static Tensor innermost(Tensor t) {
  for (;;) {
    if (const auto* batched = at::functorch::maybeGetBatchedImpl(t)) {
      t = batched->value();
    } else if (const auto* wrapper = at::functorch::maybeGetTensorWrapper(t)) {
      t = wrapper->value();
    } else {
      return t;
    }
  }
}

static bool is_fake(const Tensor& t) {
  return t.key_set().has(c10::DispatchKey::Python) ||
         t.unsafeGetTensorImpl()->has_symbolic_sizes_strides();
}

void check_composite_storage(const char* op, const char* argument, const Tensor& t) {
  const Tensor value = innermost(t);
  if (!is_fake(value) && value.has_storage()) check_storage(op, argument, value);
}

bool are_dense_keys(const c10::DispatchKeySet& keys) {
  using c10::DispatchKey;
  static const c10::DispatchKeySet dense(
      {DispatchKey::CPU, DispatchKey::CUDA, DispatchKey::AutogradCPU, DispatchKey::AutogradCUDA,
       DispatchKey::ADInplaceOrView, DispatchKey::BackendSelect});
  // Compares bits: `keys - dense` would keep the backend bits.
  return (keys.raw_repr() & ~dense.raw_repr()) == 0;
}

Tensor known_values(const Tensor& t) {
  const Tensor value = innermost(t);
  return is_fake(value) || value.is_meta() ? Tensor() : value;
}

void check_shape(const char* op, const char* argument, const char* letters, const Tensor& t,
                 c10::SymIntArrayRef shape) {
  TORCH_CHECK(t.sym_sizes().equals(shape), op, ": ", argument, " must have shape ", letters, " = ",
              shape, ", got ", t.sym_sizes());
}

void check_same_shape(const char* op, const char* argument, const Tensor& t, const char* model_name,
                      const Tensor& model) {
  TORCH_CHECK(t.sym_sizes().equals(model.sym_sizes()), op, ": ", argument,
              " must have the same shape as ", model_name, ", ", model.sym_sizes(), ", got ",
              t.sym_sizes());
}

void check_like(const char* op, const char* argument, const Tensor& t, const char* model_name,
                const Tensor& model) {
  TORCH_CHECK(t.device() == model.device(), op, ": ", argument, " must be on the device of ",
              model_name, ", ", model.device(), ", got ", t.device());
  TORCH_CHECK(t.scalar_type() == model.scalar_type(), op, ": ", argument,
              " must have the dtype of ", model_name, ", ", dtype_name(model.scalar_type()),
              ", got ", dtype_name(t.scalar_type()));
}

void check_cell_state(const char* op, const char* argument, const Tensor& t, const Tensor& input) {
  const bool half = c10::isReducedFloatingType(input.scalar_type());
  TORCH_CHECK(t.scalar_type() == input.scalar_type() || (half && t.scalar_type() == at::kFloat), op,
              ": ", argument, " must have the dtype of input, ", dtype_name(input.scalar_type()),
              half ? ", or float32" : "", ", got ", dtype_name(t.scalar_type()));
  TORCH_CHECK(t.device() == input.device(), op, ": ", argument, " must be on the device of input, ",
              input.device(), ", got ", t.device());
}

}  // namespace treadle
