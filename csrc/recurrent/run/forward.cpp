// The forward pass of recurrent_layer, on all devices. Shapes: layer/layer.h; formulas:
// kernels/math/cells. Backward pass: backward.cpp. Backends: run/cpu.cpp, cuda/layer.cpp.
// Derivatives: layer/autograd.cpp.
#include <ATen/Functions.h>
#include <ATen/record_function.h>

#include <algorithm>

#include "common/flush.h"
#include "recurrent/layer/groups.h"
#include "recurrent/run/run.h"

namespace treadle {
namespace {

// The data of direction d of a tensor [D, ...].
const void* const_direction_data(const LayerRun& run, const Tensor& t, int64_t d) {
  return static_cast<const char*>(t.const_data_ptr()) + d * t.nbytes() / run.sizes.directions;
}
void* direction_data(const LayerRun& run, const Tensor& t, int64_t d) {
  return static_cast<char*>(t.mutable_data_ptr()) + d * t.nbytes() / run.sizes.directions;
}

// The memory for a state that steps update: `last` if it is suitable, otherwise a new tensor.
Tensor working_state(const Tensor& last, ScalarType dtype) {
  if (last.scalar_type() == dtype && begins_at_16_bytes(last)) return last;
  return at::empty(last.sizes(), last.options().dtype(dtype));
}

// Writes the state after the last step to `last`.
Tensor put_state(const Tensor& state, const Tensor& last) {
  return last.is_same(state) ? last : last.copy_(state);
}

// The arguments that describe all steps of a direction, without the input products.
RecurrenceForward steps_of(const LayerRun& run, const ForwardDirection& direction,
                           const Tensor& output) {
  const RecurrenceSizes& sizes = run.sizes;
  const int64_t d = direction.d;
  RecurrenceForward all{};
  all.cell = sizes.cell;
  all.dtype = sizes.dtype;
  all.batch = sizes.batch;
  all.hidden = sizes.hidden;
  all.steps = direction.steps.data();
  all.step_count = sizes.steps;
  all.bias_ih = const_data_of(direction.bias_ih);
  all.bias_hh = const_data_of(direction.bias_hh);
  all.h = direction_data(run, direction.h, d);
  all.c = direction_data(run, direction.c, d);
  const Tensor& first_c = direction.first_c;
  if (first_c.defined()) all.first_c = const_direction_data(run, first_c, d);
  all.output = static_cast<char*>(output.mutable_data_ptr()) +
               d * sizes.hidden * static_cast<int64_t>(output.element_size());
  all.output_stride = sizes.directions * sizes.hidden;
  all.gates = data_of(direction.gates);
  all.resets = run.resets.from(d);
  return all;
}

ForwardDirection direction_of(const LayerRun& run, int64_t d, const Tensor& output,
                              const Tensor& first_h, const Tensor& first_c, const Tensor& h,
                              const Tensor& c, const Tensor& gates) {
  const LayerArguments& args = run.arguments;
  ForwardDirection found{d,
                         run.sequence.in_order(args.time_direction(d)),
                         run.rows(args.input),
                         parameter_of(args, args.weight_ih, d),
                         parameter_of(args, args.weight_hh, d),
                         aligned(parameter_of(args, args.bias_ih, d)),
                         aligned(parameter_of(args, args.bias_hh, d)),
                         h,
                         c,
                         first_h,
                         first_c,
                         gates,
                         {}};
  found.all = steps_of(run, found, output);
  return found;
}

LayerSaved run_layer(const RecurrenceBackend& backend, const LayerArguments& arguments, bool save,
                     std::string_view algorithm, const StackStates& stack) {
  const LayerRun run(backend, arguments, algorithm, /*backward=*/false, stack);
  if (stack.zeros != nullptr && !run.null_states()) stack.zeros->write();
  const FlushInProducts flush(arguments.input, run.multiplications());
  return backend.forward(run, save);
}

LayerSaved forward(const RecurrenceBackend& backend, const LayerArguments& arguments, bool save,
                   std::string_view algorithm, const StackStates& stack = {}) {
  check_layer(layer_op_name(), arguments);
  check_layer_data(layer_op_name(), arguments);
  const int64_t groups = groups_of(arguments);
  if (groups == 1) return run_layer(backend, arguments, save, algorithm, stack);
  const bool zeros = stack.zeros != nullptr;
  if (zeros) stack.zeros->write();
  const CellInfo& cell = cell_info(arguments.cell);
  const auto [output, h, c, gates] =
      run_layer(backend, in_groups(arguments, groups, zeros), save, algorithm, {});
  const auto put = [&](const Tensor& t, int64_t blocks, const Tensor& to) {
    // If each group has one unit, this is a view.
    const Tensor found = from_groups(t, groups, blocks, -1);
    return to.defined() ? to.copy_(found) : contiguous(found);
  };
  return {output, put(h, 1, stack.h_n), put(c, cell.c_parts, stack.c_n), gates};
}

}  // namespace

const void* ForwardDirection::first_h_data(const LayerRun& run) const {
  return first_h.defined() ? const_direction_data(run, first_h, d) : nullptr;
}

LayerSaved new_outputs(const LayerRun& run, bool save) {
  const Tensor& input = run.arguments.input;
  auto shape = input.sizes().vec();
  shape.back() = run.sizes.directions * run.sizes.hidden;
  Tensor gates;
  if (save) gates = at::empty_symint(layer_gates_shape(run.arguments, false), input.options());
  return {at::empty(shape, input.options()), run.last_h(), run.last_c(), gates};
}

LayerSaved forward_by_steps(const LayerRun& run, bool save, bool reads_h0, bool reads_c0,
                            const std::function<void(const ForwardDirection&)>& f) {
  const Tensor &h0 = run.arguments.h0, &c0 = run.arguments.c0;
  const auto [output, h_n, c_n, gates] = new_outputs(run, save);
  const Tensor h = working_state(h_n, h_n.scalar_type()), c = working_state(c_n, run.acc);
  const Tensor first_h = reads_h0 ? aligned(h0) : Tensor();
  const Tensor first_c = reads_c0 ? aligned(c0) : Tensor();
  if (!reads_h0) h.copy_(h0);
  if (!reads_c0) c.copy_(c0);
  for (int64_t d = 0; d < run.sizes.directions && !run.idle(); ++d) {
    f(direction_of(run, d, output, first_h, first_c, h, c, save ? run.rows(gates, d) : Tensor()));
  }
  return {output, put_state(h, h_n), put_state(c, c_n), gates};
}

void in_chunks(const LayerRun& run, const ForwardDirection& direction,
               const InputProducts& multiply,
               const std::function<void(const RecurrenceForward&, bool first)>& f) {
  const RecurrencePlan& plan = run.plan;
  const Tensor& gates = direction.gates;
  const int64_t count = run.sizes.steps;
  for (int64_t begin = 0; begin < count; begin += plan.steps_per_chunk) {
    const int64_t end = std::min(count, begin + plan.steps_per_chunk);
    const auto &one = direction.steps[begin], &other = direction.steps[end - 1];
    const int64_t first = std::min(one.start, other.start);
    const int64_t last = std::max(one.start + one.rows, other.start + other.rows);
    if (first == last) continue;
    const Tensor products = multiply(part(direction.input, 0, first, last - first),
                                     gates.defined() ? part(gates, 0, first, last - first) : gates);
    RecurrenceForward chunk = direction.all;
    chunk.steps = &one;
    chunk.step_count = end - begin;
    if (begin > 0) chunk.first_c = nullptr;
    chunk.products = matrix_view(products);
    // The start of a step is relative to row 0 of the whole sequence, but `products` begins at row
    // `first`. So move the pointer back to where row 0 would be.
    chunk.products.data =
        static_cast<const char*>(chunk.products.data) -
        first * chunk.products.row_stride * static_cast<int64_t>(products.element_size());
    f(chunk, begin == 0);
  }
}

LayerResults recurrent_layer_kernel(const RecurrenceBackend& backend,
                                    const LayerArguments& arguments, bool,
                                    c10::string_view algorithm) {
  auto [output, h_n, c_n, gates] = forward(backend, arguments, /*save=*/false, algorithm);
  return {output, h_n, c_n};
}

Tensor recurrent_layer_inference(const RecurrenceBackend& backend, const LayerArguments& arguments,
                                 const StackStates& states) {
  RECORD_FUNCTION("treadle::recurrent_layer", c10::ArrayRef<const c10::IValue>());
  return std::get<0>(forward(backend, arguments, /*save=*/false, "auto", states));
}

LayerSaved recurrent_layer_forward_kernel(const RecurrenceBackend& backend,
                                          const LayerArguments& arguments, bool recompute,
                                          c10::string_view algorithm) {
  auto results = forward(backend, arguments, !recompute, algorithm);
  if (recompute) std::get<3>(results) = at::empty({0}, arguments.input.options());
  return results;
}

}  // namespace treadle
