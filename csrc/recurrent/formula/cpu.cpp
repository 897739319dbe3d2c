#include "recurrent/formula/cpu.h"

#include <ATen/Functions.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>

#include "recurrent/formula/evaluate.h"

namespace treadle {
namespace {

ScalarType scalar_type_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::kHalf:
      return at::kHalf;
    case Dtype::kBFloat16:
      return at::kBFloat16;
    case Dtype::kDouble:
      return at::kDouble;
    default:
      return at::kFloat;
  }
}

// Views of the arguments' memory, in the dtype in which they are stored or in the dtype of sums.
struct Memory {
  ScalarType stored, sums;

  explicit Memory(Dtype dtype) : stored(scalar_type_of(dtype)), sums(at::toOpMathType(stored)) {}

  static Tensor view(const void* data, int64_t row, int64_t rows, int64_t columns,
                     int64_t row_stride, int64_t column_stride, ScalarType dtype) {
    auto* const at = static_cast<char*>(const_cast<void*>(data)) +
                     row * row_stride * static_cast<int64_t>(c10::elementSize(dtype));
    return at::from_blob(at, {rows, columns}, {row_stride, column_stride},
                         at::TensorOptions().dtype(dtype));
  }
  static Tensor rows(const void* data, int64_t row, int64_t count, int64_t width,
                     ScalarType dtype) {
    return view(data, row, count, width, width, 1, dtype);
  }
};

std::vector<Tensor> columns_of(const Tensor& t, int64_t count) {
  return t.unflatten(1, {count, -1}).unbind(1);
}

void push_parts(std::vector<Tensor>& values, const Tensor& c, int64_t count) {
  for (const Tensor& part : columns_of(c, count)) values.push_back(part);
}

// The results from index `first` on, side by side.
Tensor beside(const std::vector<Tensor>& results, int64_t first) {
  const at::TensorList parts = at::TensorList(results).slice(first);
  return parts.size() == 1 ? parts[0] : at::cat(parts, 1);
}

// Replaces the states of rows that reset before the step.
void start_anew(const RecurrenceResets& resets, const RecurrenceStep& step, const Memory& memory,
                const Tensor& h, const Tensor& c) {
  for (int64_t b = 0; resets.marks != nullptr && b < step.rows; ++b) {
    if (!starts_anew(resets, step, b)) continue;
    const int64_t row = reset_row(resets, step, b);
    const auto replace = [&](const Tensor& state, const void* by, ScalarType dtype) {
      if (!state.defined()) return;
      Tensor own = state.select(0, b);
      by == nullptr ? own.zero_()
                    : own.copy_(Memory::rows(by, row, 1, own.size(0), dtype).select(0, 0));
    };
    replace(h, resets.h, memory.stored);
    replace(c, resets.c, memory.sums);
  }
}

}  // namespace

void formula_forward_cpu(const RecurrenceForward& args, const Tensor& weight_hh) {
  const CellInfo& cell = cell_info(args.cell);
  const Memory memory(args.dtype);
  const int64_t hidden = args.hidden, first = cell.input_first * hidden;
  const int64_t inputs = cell.input_gates * hidden, states = cell.state_gates * hidden;
  const int64_t c_width = cell.c_parts * hidden;
  const FormulaProgram& forward = formula_evaluators(args.cell).forward;
  const Tensor weight = weight_hh.to(memory.sums).t();
  Tensor bias = at::zeros({cell.gates * hidden}, weight.options());
  const auto add_bias = [&](const void* data, int64_t from, int64_t width) {
    if (data == nullptr) return;
    bias.narrow(0, from, width).add_(Memory::rows(data, 0, 1, width, memory.stored).select(0, 0));
  };
  add_bias(args.bias_ih, first, inputs);
  add_bias(args.bias_hh, 0, states);
  for (int64_t s = 0; s < args.step_count; ++s) {
    const RecurrenceStep& step = args.steps[s];
    if (step.rows == 0) continue;
    const Tensor h = Memory::rows(args.h, 0, step.rows, hidden, memory.stored);
    const Tensor c = Memory::rows(args.c, 0, step.rows, c_width, memory.sums);
    start_anew(args.resets, step, memory, h, c);
    Tensor gates = bias.expand({step.rows, bias.size(0)}).clone(at::MemoryFormat::Contiguous);
    gates.narrow(1, 0, states).addmm_(h.to(memory.sums), weight);
    gates.narrow(1, first, inputs)
        .add_(Memory::view(args.products.data, step.start, step.rows, inputs,
                           args.products.row_stride, args.products.column_stride, memory.sums));
    if (args.gates != nullptr) {
      Memory::rows(args.gates, step.start, step.rows, bias.size(0), memory.stored).copy_(gates);
    }
    std::vector<Tensor> values = columns_of(gates, cell.gates);
    push_parts(values, c, cell.c_parts);
    const std::vector<Tensor> found = forward(values);
    h.copy_(found[0]);
    c.copy_(beside(found, 1));
    Memory::view(args.output, step.start, step.rows, hidden, args.output_stride, 1, memory.stored)
        .copy_(h);
  }
}

void formula_c_states_cpu(const RecurrenceCStates& args) {
  const CellInfo& cell = cell_info(args.cell);
  const Memory memory(args.dtype);
  const int64_t hidden = args.hidden, c_width = cell.c_parts * hidden;
  const FormulaProgram& forward = formula_evaluators(args.cell).forward;
  for (int64_t s = 0; s < args.step_count; ++s) {
    const RecurrenceStep& step = args.steps[s];
    if (step.rows == 0) continue;
    const Tensor c = Memory::rows(args.c, 0, step.rows, c_width, memory.sums);
    start_anew(args.resets, step, memory, Tensor(), c);
    Memory::rows(args.c_states, step.start, step.rows, c_width, memory.sums).copy_(c);
    std::vector<Tensor> values = columns_of(
        Memory::rows(args.gates, step.start, step.rows, cell.gates * hidden, memory.stored)
            .to(memory.sums),
        cell.gates);
    push_parts(values, c, cell.c_parts);
    c.copy_(beside(forward(values), 1));
  }
}

void formula_backward_cpu(const RecurrenceBackward& args, const Tensor& weight_hh) {
  const CellInfo& cell = cell_info(args.cell);
  const Memory memory(args.dtype);
  const int64_t hidden = args.hidden, width = cell.gates * hidden;
  const int64_t c_width = cell.c_parts * hidden;
  const FormulaProgram& backward = formula_evaluators(args.cell).backward;
  const Tensor weight = weight_hh.to(memory.sums);
  for (int64_t s = 0; s < args.step_count; ++s) {
    const RecurrenceStep& step = args.steps[s];
    if (step.rows == 0) continue;
    Tensor grad_h = Memory::rows(args.grad_h.data, 0, step.rows, hidden, memory.sums);
    Tensor grad_c = Memory::rows(args.grad_c, 0, step.rows, c_width, memory.sums);
    Tensor of_h = grad_h;
    if (args.grad_output.data != nullptr) {
      const auto& [data, row_stride, column_stride] = args.grad_output;
      of_h = grad_h + Memory::view(data, step.start, step.rows, hidden, row_stride, column_stride,
                                   memory.stored);
    }
    const auto saved = [&](const void* data, int64_t columns, ScalarType dtype) {
      return Memory::rows(data, step.start, step.rows, columns, dtype).to(memory.sums);
    };
    std::vector<Tensor> values = columns_of(saved(args.gates, width, memory.stored), cell.gates);
    push_parts(values, saved(args.c_states, c_width, memory.sums), cell.c_parts);
    values.push_back(of_h);
    push_parts(values, grad_c, cell.c_parts);
    const std::vector<Tensor> found = backward(values);
    const Tensor grads = Memory::rows(args.grad_gates, step.start, step.rows, width, memory.sums);
    grads.copy_(at::cat(at::TensorList(found.data(), cell.gates), 1));
    grad_c.copy_(beside(found, cell.gates));
    at::mm_out(grad_h, grads.narrow(1, 0, cell.state_gates * hidden), weight);
    // In rows where a reset replaced the state before the step, moves its gradient to the
    // replacement.
    for (int64_t b = 0; args.resets.marks != nullptr && b < step.rows; ++b) {
      if (!starts_anew(args.resets, step, b)) continue;
      const auto cut = [&](const Tensor& grad, void* to) {
        Tensor own = grad.select(0, b);
        if (to != nullptr) {
          Memory::rows(to, step.start + b, 1, own.size(0), memory.sums).select(0, 0).copy_(own);
        }
        own.zero_();
      };
      cut(grad_h, args.resets.grad_h);
      cut(grad_c, args.resets.grad_c);
    }
  }
}

}  // namespace treadle
