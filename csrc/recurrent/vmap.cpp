// lltm_layer under vmap and under autocast.
//
// Rows are independent. Where only arguments with rows are batched, the batch folds into them:
// [..., B, X] and N samples become [..., B * N, X], the samples of a row side by side, so that the
// rows of a packed batch stay sorted by length and each of batch_sizes counts N times. Gradients of
// weights sum over rows; where these are wanted, or weights are batched, a loop runs the op N
// times.
#include <ATen/ATen.h>
#include <ATen/functorch/PlumbingHelper.h>

#include <optional>

#include "dispatch.h"
#include "rules.h"

namespace treadle {
namespace {

namespace functorch = at::functorch;

struct Value {
  Tensor value;  // without this level's batch, which is dimension `batch` of it; or undefined
  std::optional<int64_t> batch;
  int64_t rank() const { return value.dim() - (batch ? 1 : 0); }
};

// Positions of the arguments of an op.
struct Layout {
  size_t input, batch_sizes, h0;
  uint64_t rows;                    // bit i: argument i has rows, in its last dimension but one
  uint64_t state_results;           // bit i: result i has the rows of h0, else those of input
  std::optional<size_t> recompute;  // result 3 is then [0], without a batch
  std::optional<size_t> mask;       // of a backward op
};

constexpr Layout kLayer{0, 1, 2, 0b1101, 0b110, std::nullopt, std::nullopt};
constexpr Layout kForward{0, 1, 2, 0b1101, 0b110, 7, std::nullopt};
constexpr Layout kBackward{3, 4, 5, 0b110001101111, 0b110, std::nullopt, 14};

std::vector<Value> unwrapped(const OperatorHandle& op, const Stack& stack, int64_t level) {
  const size_t count = op.schema().arguments().size();
  std::vector<Value> found(count);
  for (size_t i = 0; i < count; ++i) {
    const auto& value = torch::jit::peek(stack, i, count);
    if (!value.isTensor() || !value.toTensor().defined()) continue;
    std::tie(found[i].value, found[i].batch) =
        functorch::unwrapTensorAtLevel(value.toTensor(), level);
  }
  return found;
}

// The arguments with tensors replaced by change(i, value), run.
template <class F>
Stack run(const OperatorHandle& op, const Stack& arguments, const std::vector<Value>& values,
          F change) {
  Stack stack(arguments);
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i].value.defined()) stack[i] = change(i, values[i]);
  }
  op.callBoxed(&stack);
  return stack;
}

// With the samples of a row side by side. The [0] of what is computed anew has no rows.
Tensor folded(const Value& v, const c10::SymInt& size) {
  if (v.rank() < 2) return v.batch ? v.value.new_empty({0}) : v.value;
  if (v.batch) return v.value.movedim(*v.batch, -2).flatten(-3, -2);
  const Tensor t = v.value.unsqueeze(-2);
  c10::SymDimVector shape(t.sym_sizes().begin(), t.sym_sizes().end());
  shape[shape.size() - 2] = size;
  return t.expand_symint(shape).flatten(-3, -2);
}

void fold(const OperatorHandle& op, const Layout& layout, const Stack& arguments,
          const std::vector<Value>& values, const c10::SymInt& size, int64_t level,
          Stack* results) {
  const auto rows = [&](size_t i) {
    const Value& v = values[i];
    const Tensor one = v.batch ? v.value.movedim(*v.batch, 0) : v.value;
    return one.sym_size(-2);
  };
  const c10::SymInt input_rows = rows(layout.input), state_rows = rows(layout.h0);
  Stack out = run(op, arguments, values, [&](size_t i, const Value& v) {
    if (i == layout.batch_sizes) return v.value.mul(Scalar(size));
    return (layout.rows >> i & 1) != 0 ? folded(v, size) : v.value;
  });
  for (size_t i = 0; i < out.size(); ++i) {
    Tensor t = out[i].toTensor();
    if (t.defined() && t.dim() >= 2) {
      const bool of_state = (layout.state_results >> i & 1) != 0;
      t = t.unflatten_symint(-2, {of_state ? state_rows : input_rows, size});
      t = functorch::makeBatched(t, t.dim() - 2, level);
    }
    results->emplace_back(t);
  }
}

void loop(const OperatorHandle& op, const Layout& layout, const Stack& arguments,
          const std::vector<Value>& values, const c10::SymInt& size, int64_t level,
          Stack* results) {
  const int64_t count = size.guard_int(__FILE__, __LINE__);
  std::vector<Stack> runs;
  // Without a sample, one of zeros says what the results look like.
  for (int64_t n = 0; n < std::max<int64_t>(count, 1); ++n) {
    runs.push_back(run(op, arguments, values, [&](size_t, const Value& v) {
      if (!v.batch) return v.value;
      if (count > 0) return v.value.select(*v.batch, n);
      c10::SymDimVector shape(v.value.sym_sizes().begin(), v.value.sym_sizes().end());
      shape.erase(shape.begin() + *v.batch);
      return at::zeros_symint(shape, v.value.options());
    }));
  }
  const bool anew = layout.recompute && arguments[*layout.recompute].toBool();
  for (size_t i = 0; i < runs[0].size(); ++i) {
    std::vector<Tensor> parts;
    for (const auto& found : runs) parts.push_back(found[i].toTensor());
    Tensor t = parts[0];
    if (t.defined() && !(anew && i == 3)) {
      t = functorch::makeBatched(at::stack(parts).narrow(0, 0, count), 0, level);
    }
    results->emplace_back(t);
  }
}

void layer_batches(const OperatorHandle& op, Stack* stack, const Layout& layout) {
  c10::impl::ExcludeDispatchKeyGuard guard(c10::DispatchKey::FuncTorchBatched);
  const auto current = functorch::maybeCurrentDynamicLayer();
  TORCH_INTERNAL_ASSERT(current.has_value());
  const int64_t level = current->layerId();
  const auto values = unwrapped(op, *stack, level);
  const std::string& name = op.schema().name();
  TORCH_CHECK(!values[layout.batch_sizes].batch, name.substr(name.find("::") + 2),
              ": batch_sizes must be the same for every sample of vmap, got a batch of them");
  const Stack arguments = torch::jit::pop(*stack, values.size());
  std::optional<c10::SymInt> size;
  bool rows_only = true;
  for (size_t i = 0; i < values.size(); ++i) {
    if (!values[i].batch) continue;
    size = values[i].value.sym_size(*values[i].batch);
    rows_only &= (layout.rows >> i & 1) != 0;
  }
  if (!size) {
    Stack out = run(op, arguments, values, [](size_t, const Value& v) { return v.value; });
    for (auto& t : out) stack->push_back(std::move(t));
    return;
  }
  if (layout.mask) {
    const auto mask = arguments[*layout.mask].toBoolList();
    rows_only &= !mask[3] && !mask[4] && !mask[5];
  }
  const auto by = rows_only && *size != 0 ? fold : loop;
  by(op, layout, arguments, values, *size, level, stack);
}

template <const Layout& layout>
void layer_batch_rule(const OperatorHandle& op, Stack* stack) {
  layer_batches(op, stack, layout);
}

}  // namespace

TORCH_LIBRARY_IMPL(treadle, FuncTorchBatched, m) {
  m.impl("lltm_layer", TREADLE_RULE(layer_batch_rule<kLayer>));
  m.impl("lltm_layer_forward", TREADLE_RULE(layer_batch_rule<kForward>));
  m.impl("lltm_layer_backward", TREADLE_RULE(layer_batch_rule<kBackward>));
}

// lltm_layer runs in autocast's dtype, as a matrix product does; c0 (3) keeps float32.
TORCH_LIBRARY_IMPL(treadle, AutocastCPU, m) {
  m.impl("lltm_layer", TREADLE_RULE(autocast_rule<c10::DeviceType::CPU, 3>));
}
TORCH_LIBRARY_IMPL(treadle, AutocastCUDA, m) {
  m.impl("lltm_layer", TREADLE_RULE(autocast_rule<c10::DeviceType::CUDA, 3>));
}

}  // namespace treadle
