// recurrent_layer, forward, on all devices. Shapes: layer.h; formulas: kernels/math/cells.
// Twin: backward.cpp. Backends: cpu.cpp, cuda/layer.cpp. Derivatives: autograd.cpp.
#include <ATen/Functions.h>

#include <algorithm>

#include "common/flush.h"
#include "recurrent/run/run.h"

namespace treadle {
namespace {

// The products of some steps. If the gates are saved in the products' dtype, both share memory:
// each product is read before its gate is written.
Tensor input_products(const LayerRun& run, const Tensor& x, const Tensor& w_ih,
                      const Tensor& gates) {
  if (!gates.defined() || !x.is_cpu() || x.scalar_type() != run.acc) {
    const Tensor a = run.plan.transposed ? w_ih : x, b = run.plan.transposed ? x.t() : w_ih.t();
    return run.tf32 ? run.mm(a, b) : run.backend.product_in_acc(a, b);
  }
  Tensor products = run.input_window(gates);
  at::mm_out(products, x, w_ih.t());
  return products;
}

// For algorithms that run step by step: replaces the states [D, B, H] with which direction d's
// first step begins.
void replace_first(const LayerRun& run, int64_t d, const RecurrenceStep& step, const Tensor& h,
                   const Tensor& c) {
  const LayerResets& resets = run.resets;
  if (!resets.marks.defined() || step.marked_rows == 0) return;
  const Tensor mark = run.rows(resets.marks).narrow(0, step.marks, step.marked_rows);
  const auto replace = [&](const Tensor& state, const Tensor& by) {
    Tensor rows = state[d].narrow(0, 0, step.marked_rows);
    if (!by.defined()) {
      rows.masked_fill_(mark, 0);
    } else {
      const Tensor own = run.rows_or_batch(by[d]);
      rows.copy_(
          at::where(mark, own.narrow(0, resets.per_step ? step.start : 0, step.marked_rows), rows));
    }
  };
  replace(h, resets.h);
  replace(c, resets.c);
}

// Direction d of a tensor [D, ...] of `run`.
const void* const_direction_data(const LayerRun& run, const Tensor& t, int64_t d) {
  return static_cast<const char*>(t.const_data_ptr()) + d * t.nbytes() / run.sizes.directions;
}
void* direction_data(const LayerRun& run, const Tensor& t, int64_t d) {
  return static_cast<char*>(t.mutable_data_ptr()) + d * t.nbytes() / run.sizes.directions;
}

// For fused algorithms: h of direction d before a step, and memory for h after it.
struct Turns {
  Tensor before, after;

  // A single step only reads the state, so it may read h0 itself.
  Turns(const LayerRun& run, int64_t d, const Tensor& first_h, const Tensor& h) {
    if (first_h.defined() && run.sizes.steps == 1) {
      before = after = first_h[d];
      return;
    }
    const Tensor states = at::empty({2, h.size(1), h.size(2)}, h.options());
    before = states[0].copy_(first_h.defined() ? first_h[d] : h[d]);
    after = states[1];
    // In the reverse direction rows of a packed batch begin at different steps.
    if (d == 1 && run.arguments.batch_sizes.defined()) after.copy_(h[d]);
  }
};

// Uses const_data_ptr, because a write access would copy an h0 with a lazily shared storage.
void* data_of_turn(const Tensor& t) { return const_cast<void*>(t.const_data_ptr()); }

// Whether rows can be read 16 bytes at a time.
bool in_chunks(const Tensor& rows) {
  return rows.stride(1) == 1 && rows.stride(0) * rows.element_size() % 16 == 0 &&
         begins_at_16_bytes(rows);
}

// Pads rows with zeros to multiples of 16 bytes, the unit in which the kernels of "tiles" read.
Tensor as_chunks(const Tensor& rows) {
  const int64_t width = rows.size(1), each = 16 / rows.element_size();
  const int64_t missing = width == 0 ? each : (each - width % each) % each;
  if (missing > 0) return at::constant_pad_nd(rows, {0, missing});
  return in_chunks(rows) ? rows : rows.clone(at::MemoryFormat::Contiguous);
}

// Rows for the kernels of "warp". Only the sizes decide whether these read vectors, so that the
// order of their sums does not depend on alignment.
Tensor as_vectors(const Tensor& rows) {
  const bool readable = rows.size(1) % 4 == 0 ? in_chunks(rows) : rows.stride(1) == 1;
  return readable ? rows : rows.clone(at::MemoryFormat::Contiguous);
}

// The arguments of a direction's steps, without the products.
RecurrenceForward steps_of(const LayerRun& run, int64_t d, const std::vector<RecurrenceStep>& steps,
                           const Tensor& output, const Tensor& bias_ih, const Tensor& bias_hh,
                           const Tensor& h, const Tensor& c, const Tensor& gates) {
  const RecurrenceSizes& sizes = run.sizes;
  RecurrenceForward all{};
  all.cell = sizes.cell;
  all.dtype = sizes.dtype;
  all.batch = sizes.batch;
  all.hidden = sizes.hidden;
  all.steps = steps.data();
  all.step_count = sizes.steps;
  all.bias_ih = const_data_of(bias_ih);
  all.bias_hh = const_data_of(bias_hh);
  all.h = direction_data(run, h, d);
  all.c = direction_data(run, c, d);
  all.output = static_cast<char*>(output.mutable_data_ptr()) +
               d * sizes.hidden * static_cast<int64_t>(output.element_size());
  all.output_stride = sizes.directions * sizes.hidden;
  all.gates = data_of(gates);
  all.resets = run.resets.from(d);
  return all;
}

// W_hh for the products of all steps, dense on CUDA. The CPU packs it itself.
Tensor as_multiplied(const LayerRun& run, const Tensor& w_hh) {
  if (run.plan.weight_by_columns) return w_hh.t().contiguous().t();
  return w_hh.is_cuda() ? w_hh.contiguous() : w_hh;
}

// Runs direction d step by step. output [S, D*H]; h, c [D, B, H] are the states, but the first step
// reads first_h if defined; gates [S, GH] or undefined.
void run_direction(const LayerRun& run, int64_t d, const Tensor& output, const Tensor& first_h,
                   const Tensor& h, const Tensor& c, const Tensor& gates) {
  const LayerArguments& args = run.arguments;
  const RecurrenceSizes& sizes = run.sizes;
  const RecurrencePlan& plan = run.plan;
  const Tensor x = run.rows(args.input), w_hh = parameter_of(args, args.weight_hh, d);
  // Cast once, not for every chunk.
  const Tensor w_ih = cast(parameter_of(args, args.weight_ih, d), run.work);
  const Tensor bias_ih = aligned(parameter_of(args, args.bias_ih, d));
  const Tensor bias_hh = aligned(parameter_of(args, args.bias_hh, d));
  const auto steps = run.sequence.in_order(d);
  if (plan.is("step") || plan.fused()) replace_first(run, d, steps[0], h, c);
  const RecurrenceForward all = steps_of(run, d, steps, output, bias_ih, bias_hh, h, c, gates);
  if (plan.fused()) {
    const bool tiles = plan.is("tiles");
    const Tensor input = tiles ? as_chunks(x) : as_vectors(x), of_h = aligned(w_hh);
    const Tensor of_input = aligned(tiles ? as_chunks(w_ih) : w_ih);
    const Turns turns(run, d, first_h, h);
    return run.backend.fused_forward({all,
                                      of_input.const_data_ptr(),
                                      of_h.const_data_ptr(),
                                      input.const_data_ptr(),
                                      input.stride(0),
                                      input.size(1),
                                      input.size(0),
                                      {data_of_turn(turns.before), data_of_turn(turns.after)}},
                                     input.device(), plan);
  }
  const void* const begin_h = first_h.defined() ? const_direction_data(run, first_h, d) : nullptr;
  if (run.backend.grouped_forward != nullptr &&
      run.backend.grouped_forward(all, args.input, w_ih, w_hh, plan, begin_h)) {
    return;
  }
  const Tensor of_h = as_multiplied(run, w_hh);
  for (int64_t begin = 0; begin < sizes.steps; begin += plan.steps_per_chunk) {
    const int64_t end = std::min(sizes.steps, begin + plan.steps_per_chunk);
    const auto &one = steps[begin], &other = steps[end - 1];
    const int64_t first = std::min(one.start, other.start);
    const int64_t last = std::max(one.start + one.rows, other.start + other.rows);
    if (first == last) continue;
    const Tensor products =
        input_products(run, part(x, 0, first, last - first), w_ih,
                       gates.defined() ? part(gates, 0, first, last - first) : gates);
    RecurrenceForward chunk = all;
    chunk.steps = &one;
    chunk.step_count = end - begin;
    chunk.products = matrix_view(plan.transposed ? products.t() : products);
    // Moves the pointer to where row 0 of S would be, because the steps count rows from there.
    chunk.products.data =
        static_cast<const char*>(chunk.products.data) -
        first * chunk.products.row_stride * static_cast<int64_t>(products.element_size());
    run.backend.forward(chunk, of_h, begin == 0 ? begin_h : nullptr);
  }
}

// Gates are undefined unless `save`.
LayerSaved run_forward(const LayerRun& run, bool save) {
  const Tensor &input = run.arguments.input, &h0 = run.arguments.h0, &c0 = run.arguments.c0;
  auto shape = input.sizes().vec();
  shape.back() = run.sizes.directions * run.sizes.hidden;
  const Tensor output = at::empty(shape, input.options());
  Tensor gates;
  if (save) gates = at::empty_symint(layer_gates_shape(run.arguments, false), input.options());
  if (run.persistent()) {
    const Tensor h = at::empty(h0.sizes(), h0.options()), c = at::empty(c0.sizes(), c0.options());
    persistent_forward(run, output, h, c, gates);
    return {output, h, c, gates};
  }
  // The kernels write h, and only the products read it. If all rows take the first step without a
  // reset, its product reads h0, and nothing is copied.
  const bool reads_h0 = (run.plan.is("step") || run.plan.fused()) && !run.idle() &&
                        !run.arguments.batch_sizes.defined() && !run.resets.marks.defined();
  const Tensor first_h = reads_h0 ? aligned(h0) : Tensor();
  const Tensor h =
      reads_h0 ? at::empty(h0.sizes(), h0.options()) : h0.clone(at::MemoryFormat::Contiguous);
  const Tensor c =
      c0.to(run.acc, /*non_blocking=*/false, /*copy=*/true, at::MemoryFormat::Contiguous);
  for (int64_t d = 0; d < run.sizes.directions && !run.idle(); ++d) {
    run_direction(run, d, output, first_h, h, c, save ? run.rows(gates, d) : Tensor());
  }
  return {output, h, cast(c, c0.scalar_type()), gates};
}

LayerSaved forward(const RecurrenceBackend& backend, const LayerArguments& arguments, bool save,
                   std::string_view algorithm) {
  check_layer(layer_op_name(), arguments);
  check_layer_data(layer_op_name(), arguments);
  const LayerRun run(backend, arguments, algorithm, /*backward=*/false);
  const FlushInProducts flush(arguments.input, run.multiplications());
  return run_forward(run, save);
}

}  // namespace

LayerResults recurrent_layer_kernel(const RecurrenceBackend& backend,
                                    const LayerArguments& arguments, bool,
                                    c10::string_view algorithm) {
  auto [output, h_n, c_n, gates] = forward(backend, arguments, /*save=*/false, algorithm);
  return {output, h_n, c_n};
}

LayerSaved recurrent_layer_forward_kernel(const RecurrenceBackend& backend,
                                          const LayerArguments& arguments, bool recompute,
                                          c10::string_view algorithm) {
  auto results = forward(backend, arguments, !recompute, algorithm);
  if (recompute) std::get<3>(results) = at::empty({0}, arguments.input.options());
  return results;
}

}  // namespace treadle
