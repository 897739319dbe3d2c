#include "recurrent/run/affine_scan.h"

#include <ATen/Parallel.h>

#include "common/autograd.h"
#include "common/check.h"
#include "common/vmap.h"
#include "kernels/common/cpu/subnormals.h"
#include "recurrent/layer/check.h"

namespace treadle {

static constexpr const char* kOp = "affine_scan";

// ---- dispatcher call

static const auto& scan_op() {
  static const auto op = find_op<AffineScanSignature>("treadle::affine_scan");
  return op;
}

Tensor affine_scan(const Tensor& keep, const Tensor& add, const Tensor& start, const Tensor& reset,
                   bool reverse) {
  return scan_op().call(keep, add, start, optional(reset), reverse);
}

// ---- check

static void check_scan(const Tensor& keep, const Tensor& add, const Tensor& start,
                       const OptionalTensor& reset) {
  TORCH_CHECK(keep.dim() == 3, kOp, ": keep must have shape [T, B, H], got ", keep.sym_sizes());
  TORCH_CHECK(keep.scalar_type() == at::kFloat || keep.scalar_type() == at::kDouble, kOp,
              ": keep must have dtype float32 or float64, got ", dtype_name(keep.scalar_type()));
  const auto shape = keep.sym_sizes();
  check_like(kOp, "add", add, "keep", keep);
  check_shape(kOp, "add", "[T, B, H]", add, shape);
  check_like(kOp, "start", start, "keep", keep);
  check_shape(kOp, "start", "[B, H]", start, shape.slice(1));
  if (!has(reset)) return;
  TORCH_CHECK(reset->device() == keep.device(), kOp, ": reset must be on keep's device, ",
              keep.device(), ", got ", reset->device());
  check_marks(kOp, "[T, B, 1]", *reset, {shape[0], shape[1], 1});
}

// ---- kernels

Tensor affine_scan_kernel(const AffineScanBackend& backend, const Tensor& keep, const Tensor& add,
                          const Tensor& start, const OptionalTensor& reset, bool reverse) {
  check_scan(keep, add, start, reset);
  const Tensor marks = value_or_undefined(reset);
  check_storages(kOp, {{"keep", keep}, {"add", add}, {"start", start}, {"reset", marks}});
  const Tensor result = at::empty(keep.sizes(), keep.options());
  if (result.numel() == 0) return result;
  const Tensor k = keep.contiguous(), a = add.contiguous(), s = start.contiguous();
  const Tensor m = contiguous(marks);
  backend.run({to_dtype(keep.scalar_type()), keep.size(0), keep.size(1), keep.size(2), reverse,
               k.const_data_ptr(), a.const_data_ptr(), s.const_data_ptr(),
               static_cast<const bool*>(const_data_of(m)), result.mutable_data_ptr()},
              keep.device());
  return result;
}

static Tensor affine_scan_meta(const Tensor& keep, const Tensor& add, const Tensor& start,
                               const OptionalTensor& reset, bool) {
  check_scan(keep, add, start, reset);
  return at::empty_symint(keep.sym_sizes(), keep.options());
}

// ---- CPU

// Computes all steps of the units begin .. end.
template <class T>
static void scan_units(const AffineScan& args, int64_t begin, int64_t end) {
  const int64_t units = args.rows * args.columns;
  const T* before = static_cast<const T*>(args.start);
  for (int64_t s = 0; s < args.steps; ++s) {
    const int64_t t = args.reverse ? args.steps - 1 - s : s;
    const T* const keep = static_cast<const T*>(args.keep) + t * units;
    const T* const add = static_cast<const T*>(args.add) + t * units;
    T* const result = static_cast<T*>(args.result) + t * units;
    for (int64_t u = begin; u < end;) {
      const int64_t row = u / args.columns, stop = std::min(end, (row + 1) * args.columns);
      if (args.reset != nullptr && args.reset[t * args.rows + row]) {
        std::copy(add + u, add + stop, result + u);
        u = stop;
      }
      for (; u < stop; ++u) result[u] = keep[u] * before[u] + add[u];
    }
    before = result;
  }
}

// The minimum number of elements of a task, which is about 10 us of work.
static constexpr int64_t kGrain = 16384;

static void affine_scan_cpu(const AffineScan& args, at::Device) {
  const int64_t grain = std::max<int64_t>(16, kGrain / args.steps);
  at::parallel_for(0, args.rows * args.columns, grain, [&](int64_t begin, int64_t end) {
    const cpu::FlushSubnormals flush;
    visit_floating(args.dtype, [&](auto type) {
      using T = typename decltype(type)::type;
      if constexpr (!is_half_type<T>) scan_units<T>(args, begin, end);
    });
  });
}

// ---- autograd: a scan of the same steps in reverse computes the gradients

// The result before each step; 0 where it is not read because of a reset.
static Tensor results_before(const Tensor& result, const Tensor& start, const Tensor& reset,
                             bool reverse) {
  const Tensor first = start.unsqueeze(0);
  const Tensor all = reverse ? at::cat({result, first}) : at::cat({first, result});
  const Tensor before = all.narrow_symint(0, reverse ? 1 : 0, result.sym_size(0));
  return reset.defined() ? before.masked_fill(reset, 0) : before;
}

// Returns the product of two factors with zeros where a row resets. Without the zeros, a NaN in one
// factor would reach the derivative of the other.
static Tensor passing(const Tensor& product, const Tensor& reset) {
  return reset.defined() ? product.masked_fill(reset, 0) : product;
}

// The gradients of all results, [T, B, H], including contributions through later results, and the
// gradient of start, [B, H].
static Tensors2 sums_of_gradients(const Tensor& grad, const Tensor& keep, const Tensor& start,
                                  const Tensor& reset, bool reverse) {
  const Tensor none = at::zeros_like(start), row = none.unsqueeze(0);
  const auto ordered = [&](const Tensor& a, const Tensor& b) {
    return reverse ? at::cat({b, a}) : at::cat({a, b});
  };
  Tensor marks;
  if (reset.defined()) {
    c10::SymDimVector shape(reset.sym_sizes().begin(), reset.sym_sizes().end());
    shape[0] = 1;
    marks = ordered(reset, at::zeros_symint(shape, reset.options()));
  }
  const Tensor sums = affine_scan(ordered(keep, row), ordered(row, grad), none, marks, !reverse);
  const c10::SymInt steps = grad.sym_size(0);
  const Tensor of_start = sums.narrow_symint(0, reverse ? steps : c10::SymInt(0), 1).squeeze(0);
  return {sums.narrow_symint(0, reverse ? 0 : 1, steps), of_start};
}

// Inputs: keep, add, start.
struct AffineScanBackward : OpNode<AffineScanBackward, Tensor, Tensor, Output, Tensor, bool> {
  static constexpr const char* kName = "AffineScanBackward";

  static variable_list backward(const variable_list& grads, const Need& need, const Tensor& keep,
                                const Tensor& start, const Tensor& result, const Tensor& reset,
                                bool reverse) {
    const auto [sums, of_start] = sums_of_gradients(grads[0], keep, start, reset, reverse);
    variable_list found(3);
    if (need[0]) found[0] = passing(sums * results_before(result, start, reset, reverse), reset);
    if (need[1]) found[1] = sums;
    if (need[2]) found[2] = of_start.clone();
    return found;
  }
};

static Tensor affine_scan_autograd(c10::DispatchKeySet keys, const Tensor& keep, const Tensor& add,
                                   const Tensor& start, const OptionalTensor& reset, bool reverse) {
  auto node = AffineScanBackward::record(keep, add, start);
  const Tensor out = below_autograd(scan_op(), keys, keep, add, start, reset, reverse);
  const Tensor marks = value_or_undefined(reset);
  if (node) set_history(out, node);
  if (has_tangent(keep, add, start)) {
    const Tensor k = primal(keep), s = primal(start), tangent_of_start = tangent(start);
    Tensor moved = tangent(add);
    if (isFwGradDefined(keep)) {
      const Tensor before = results_before(primal(out), s, marks, reverse);
      moved = plus(moved, passing(tangent(keep) * before, marks));
    }
    set_tangent(out, affine_scan(k, moved.defined() ? moved : at::zeros_like(k),
                                 tangent_of_start.defined() ? tangent_of_start : at::zeros_like(s),
                                 marks, reverse));
  }
  if (node) node->save(keep, start, out, marks, reverse);
  return out;
}

// ---- vmap: rows are independent, so the batch is folded into them

static void affine_scan_batch_rule(const OperatorHandle& op, Stack* stack) {
  const BatchedCall call(op, stack, /*rows=*/0b1111);
  if (!call.any()) return call.run_unbatched();
  const auto& keep = call.tensors().front();
  TORCH_CHECK(keep.rank() == 3, kOp, ": keep must have shape [T, B, H], got ",
              c10::SymIntArrayRef(keep.shape()));
  const c10::SymInt rows = keep.shape()[1];
  const Stack results = call.run([&](const BatchedCall::Argument& a) {
    return a.rank() < 2 ? a.value : call.folded(a, -2);  // the op raises for a rank below 2
  });
  call.give(results[0].toTensor().unflatten_symint(-2, {rows, call.size()}), 2);
}

// ---- registration

static constexpr AffineScanBackend kAffineScanCpu{affine_scan_cpu};

TORCH_LIBRARY_IMPL(treadle, CPU, m) {
  m.impl("affine_scan", bind<kAffineScanCpu, affine_scan_kernel>);
}
TORCH_LIBRARY_IMPL(treadle, Meta, m) { m.impl("affine_scan", affine_scan_meta); }
TORCH_LIBRARY_IMPL(treadle, Autograd, m) { m.impl("affine_scan", affine_scan_autograd); }
TORCH_LIBRARY_IMPL(treadle, FuncTorchBatched, m) {
  m.impl("affine_scan", TREADLE_RULE(affine_scan_batch_rule));
}

}  // namespace treadle
